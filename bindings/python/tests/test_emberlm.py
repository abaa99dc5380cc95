"""Compares the package with what the C library answers, and its errors with what they must be.

EMBERLM_MODEL, EMBERLM_REFERENCE (of bindings/common/reference.c) and EMBERLM_LAYOUT (of generate.py --layout) name the files.
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import select
import tempfile
import threading
import time
import unittest
from pathlib import Path

import emberlm
from emberlm import DraftSource, EmberError, GenerateEnd, GrammarKind, Sampling, Status, _abi, _library

MODEL = os.environ["EMBERLM_MODEL"]


def read_reference() -> dict[str, str]:
    lines = Path(os.environ["EMBERLM_REFERENCE"]).read_text().splitlines()
    return {name: value.replace("\\n", "\n") for name, value in (line.split("=", 1) for line in lines)}


REFERENCE = read_reference()


def reference_tokens(name: str) -> list[int]:
    return [int(token) for token in REFERENCE[name].split(",")]


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.model = emberlm.Model(MODEL)
        cls.prompt = cls.model.tokenize(REFERENCE["story"])
        cls.greedy = reference_tokens("greedy_tokens")

    def assert_status(self, status: Status, function, *args, **kwargs) -> EmberError:
        with self.assertRaises(EmberError) as caught:
            function(*args, **kwargs)
        self.assertEqual(caught.exception.status, status)
        self.assertEqual(caught.exception.name, "EMBER_" + status.name)
        self.assertTrue(str(caught.exception).startswith("EMBER_" + status.name))
        return caught.exception


class Header(unittest.TestCase):
    def test_layout(self) -> None:
        """Sizes, offsets and numbers are those that a C compiler sees."""
        lines = Path(os.environ["EMBERLM_LAYOUT"]).read_text().splitlines()
        compiled = {name: int(value) for name, value in (line.split() for line in lines)}
        ours = {name: int(value) for name, value in _abi.NUMBERS.items()}
        ours |= {name: getattr(_abi, name) for name in ("EMBER_ABI_VERSION", "EMBER_VERSION_NUMBER", "EMBER_NO_INDEX", "EMBER_NO_TOKEN")}
        for struct in _abi.STRUCTS:
            ours[struct.__name__] = ctypes.sizeof(struct)
            ours |= {f"{struct.__name__}.{f[0]}": getattr(struct, f[0]).offset for f in struct._fields_}
        self.assertEqual(ours, compiled)
        self.assertGreater(len(ours), 250)

    def test_versions(self) -> None:
        self.assertEqual(emberlm.version(), REFERENCE["version"])
        self.assertEqual(emberlm.version_number(), _abi.EMBER_VERSION_NUMBER)
        self.assertEqual(emberlm.__version__, REFERENCE["version"])
        _library.check_version(_abi.EMBER_ABI_VERSION)
        with self.assertRaises(emberlm.VersionError):
            _library.check_version(_abi.EMBER_ABI_VERSION + 1)
        _library.check_version(_abi.EMBER_ABI_VERSION, lambda: _abi.EMBER_VERSION_NUMBER + 1)
        with self.assertRaises(emberlm.VersionError):
            _library.check_version(_abi.EMBER_ABI_VERSION, lambda: _abi.EMBER_VERSION_NUMBER - 1)

    def test_devices(self) -> None:
        cpus = [device for device in emberlm.devices() if device["kind"] == emberlm.DeviceKind.CPU]
        self.assertEqual([device["usable"] for device in cpus], [1])
        self.assertTrue(emberlm.supported(emberlm.Capability.GGUF))
        self.assertFalse(emberlm.supported(9999))


class Models(Case):
    def test_facts(self) -> None:
        self.assertEqual(self.model.info()["vocab_size"], 1424)
        self.assertEqual(self.model.metadata("general.architecture"), "llama")
        self.assertEqual(len(self.model.metadata_keys()), self.model.info()["metadata_count"])
        self.assertEqual(len(self.model.end_tokens()), self.model.tokenizer_info()["end_token_count"])
        self.assertTrue(all(map(self.model.is_end, self.model.end_tokens())))
        self.assertEqual(emberlm.estimate(MODEL)["context"], 2048)
        self.assertEqual(len(self.model.parts()), 1)
        cpu = [device["kind"] for device in emberlm.devices()].index(emberlm.DeviceKind.CPU)
        shared = {"devices": [cpu, cpu], "device_layers": [2, 0]}
        self.assertEqual(emberlm.estimate(MODEL, part=1, **shared)["first_layer"], 2)
        with emberlm.Model(MODEL, **shared) as model:
            self.assertEqual(model.parts()[1]["first_layer"], 2)
        self.model.evict()
        self.model.resume()

    def test_tokens(self) -> None:
        self.assertEqual(self.prompt, reference_tokens("greedy_prompt"))
        self.assertEqual(self.model.tokenize(REFERENCE["story"], interrupt=emberlm.Interrupt()), self.prompt)
        self.assertEqual(self.model.tokenize(REFERENCE["story"], add_special=False), self.prompt[1:])
        self.assertEqual(self.model.detokenize(self.prompt, skip_special=True), REFERENCE["story"])
        self.assertEqual(self.model.token_bytes(self.prompt[1]), b"Once")
        words = "Grüße, 世界! 🔥 \0 " * 50
        self.assertEqual(self.model.detokenize(self.model.tokenize(words, add_special=False)), words)
        stop = emberlm.Interrupt()
        stop.set()
        self.assert_status(Status.INTERRUPTED, self.model.tokenize, "a b c " * 10000, interrupt=stop)

    def test_errors(self) -> None:
        self.assert_status(Status.FILE_NOT_FOUND, emberlm.Model, "no such file")
        self.assert_status(Status.UNKNOWN_FORMAT, emberlm.Model, "/")
        self.assert_status(Status.NO_DEVICE, emberlm.Model, MODEL, device=1000)
        self.assert_status(Status.MISSING_KEY, self.model.metadata, "no.such.key")
        self.assert_status(Status.INVALID_TOKEN, self.model.token_bytes, 4000000000)
        self.assert_status(Status.INVALID_ARGUMENT, self.model.session, sampling=Sampling(top_p=2))
        with self.model.session() as session:
            self.assertEqual(self.assert_status(Status.INVALID_TOKEN, session.prefill, [1, 2, 4000000000]).index, 2)

    def test_sources(self) -> None:
        data = Path(MODEL).read_bytes()
        for model in (emberlm.Model.from_bytes(data), emberlm.Model.from_bytes(bytearray(data)), emberlm.Model.from_file(io.BytesIO(data))):
            with model, model.session() as session:
                self.assertEqual(session.generate(self.prompt, limit=40).text, REFERENCE["greedy_text"])
        self.assert_status(Status.UNKNOWN_FORMAT, emberlm.Model.from_bytes, b"x" * 1000)

        class Broken(io.BytesIO):
            def read(self, *_: object) -> bytes:
                raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            emberlm.Model.from_file(Broken(data))
        heard: list[float] = []
        emberlm.Model(MODEL, progress=heard.append).close()
        self.assertEqual(heard[-1], 1)
        self.assert_status(Status.CANCELLED, emberlm.Model, MODEL, progress=lambda fraction: False)
        with self.assertRaises(ZeroDivisionError):
            emberlm.Model(MODEL, progress=lambda fraction: 1 / 0)


class Answers(Case):
    def test_greedy(self) -> None:
        with self.model.session() as session:
            session.prefill(self.prompt)
            self.assertEqual([session.decode() for _ in self.greedy], self.greedy)
            self.assertEqual(session.position, len(self.prompt) + len(self.greedy))
            self.assertEqual(session.info()["position"], session.position)
            self.assertEqual(session.tokens(len(self.prompt)), self.greedy)
            with session.fork() as fork:
                self.assertEqual(fork.decode(), session.decode())

    def test_drawn(self) -> None:
        with self.model.session(sampling=Sampling(temperature=0.8, seed=3, logprobs=4)) as session:
            session.prefill(self.prompt)
            self.assertEqual([session.decode() for _ in range(40)][: len(reference_tokens("drawn_tokens"))], reference_tokens("drawn_tokens"))
            probable = session.logprobs()
            self.assertEqual(len(probable.tokens), 4)
            self.assertEqual(probable.logprobs, sorted(probable.logprobs, reverse=True))
            session.set_sampling(Sampling(logit_bias={7: 1000.0}))
            session.rewind(len(self.prompt))
            self.assertEqual(session.decode(), 7)
            breakers = [emberlm.DryBreaker("\n"), emberlm.DryBreaker(tokens=[5, 6])]
            session.set_sampling(Sampling(banned=[self.greedy[0]], dry_multiplier=1, dry_breakers=breakers))
            session.rewind(len(self.prompt))
            self.assertNotEqual(session.decode(), self.greedy[0])
            session.rewind(len(self.prompt))
            logits = session.logits()
            self.assertEqual((len(logits), max(range(len(logits)), key=logits.__getitem__)), (1424, self.greedy[0]))
            self.assertTrue(all(entry["name"] for entry in session.profile()))

    def test_generate(self) -> None:
        with self.model.session() as session:
            pieces: list[str] = []
            made = session.generate(self.prompt, limit=40, on_text=lambda text, token: pieces.append(text))
            self.assertEqual((made.text, "".join(pieces)), (REFERENCE["greedy_text"],) * 2)
            self.assertEqual((made.end, made.token_count, made.position), (GenerateEnd.LIMIT, 40, len(self.prompt)))
            session.rewind(0)
            made = session.generate(self.prompt, stops=["xyz", "brush"])
            self.assertEqual((made.end, made.stop, made.text), (GenerateEnd.STOP, 1, " One cold morning, she lost her blue "))
            session.rewind(0)
            self.assertEqual(session.generate(self.prompt, on_text=lambda text, token: False).end, GenerateEnd.CALLBACK)
            session.rewind(0)
            with self.assertRaises(ZeroDivisionError):
                session.generate(self.prompt, on_text=lambda text, token: 1 / 0)
            self.assertEqual(session.position, len(self.prompt) + 1)

    def test_stream(self) -> None:
        with self.model.session() as session:
            pieces = session.stream(self.prompt, limit=40)
            first = next(pieces)
            self.assertEqual(session.position, len(self.prompt) + 1)
            self.assertEqual(first + "".join(pieces), REFERENCE["greedy_text"])
            session.rewind(0)
            self.assertEqual("".join(session.stream(self.prompt, stops=["brush"])), " One cold morning, she lost her blue ")
            session.rewind(0)
            whole = session.generate(self.prompt)
            session.rewind(0)
            self.assertEqual("".join(session.stream(self.prompt)), whole.text)
        with self.model.session(context=len(self.prompt) + 4) as small:
            self.assertEqual("".join(small.stream(self.prompt)), self.model.detokenize(self.greedy[:4], new_text=False))

    def test_chat(self) -> None:
        messages = [{"role": "user", "content": "What is 2 plus 3?"}]
        self.assertEqual(self.model.chat_tokenize(messages), reference_tokens("chat_prompt"))
        with self.model.session() as session:
            answer = session.chat(messages, limit=100)
            self.assertEqual((answer.text, answer.end), (REFERENCE["chat_text"], GenerateEnd.TOKEN))
            messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": 'say "a\\b"\n <|end|>'}]
            self.assertIn('say "a\\b"\n <|end|>', self.model.chat_format(messages))
            self.assertGreater(session.sync(self.model.chat_tokenize(messages)), len(reference_tokens("chat_prompt")))
        self.assertEqual(self.model.chat_format(messages, template="{{ word }}!", word="Öl"), "Öl!")
        self.assert_status(Status.INVALID_ARGUMENT, self.model.chat_tokenize, "nonsense")
        self.assert_status(Status.TEMPLATE_FAILED, self.model.chat_format, messages, template="{{ raise_exception('no') }}")

    def test_grammar(self) -> None:
        with self.model.session() as session:
            session.set_json_schema(REFERENCE["schema"])
            self.assertEqual(session.chat(REFERENCE["facts"]).text, REFERENCE["json_text"])
            session.rewind(0)
            session.set_grammar(GrammarKind.REGEX, "[0-9]{3}", interrupt=emberlm.Interrupt())
            self.assertRegex(session.generate(self.prompt).text, "^[0-9]{3}$")
            session.rewind(0)
            session.set_json_schema({"enum": ["ä", "ö"]})
            self.assertIn(session.generate(self.prompt).text, ('"ä"', '"ö"'))
            session.set_grammar(GrammarKind.NONE)
            self.assertTrue(self.assert_status(Status.GRAMMAR, session.set_json_schema, {"type": 5}).message)

    def test_adapters(self) -> None:
        path = os.path.join(os.path.dirname(MODEL), "../tests/data/adapters/hamlet.gguf")
        with self.model.adapter(path) as adapter, self.model.session() as plain, self.model.session() as session:
            info = adapter.info()
            self.assertEqual((info["rank"], info["tensor_count"], info["name"]), (2, 8, "hamlet, disturbed"))
            session.set_adapters([(adapter, 1.0)])
            for one in (plain, session):
                one.prefill(self.prompt)
            adapted = list(session.logits())
            self.assertNotEqual(adapted, list(plain.logits()))
            memory = io.BytesIO()
            session.save_to(memory)
            memory.seek(0)
            self.assert_status(Status.STATE_FOREIGN, self.model.restore_from, memory)
            memory.seek(0)
            with self.model.restore_from(memory, adapters=[adapter]) as restored:
                self.assertEqual(list(restored.logits()), adapted)
                restored.set_adapters([])
                self.assertEqual(list(restored.logits()), list(plain.logits()))
            adapter.close()
            session.set_adapters([], keep=True)
            self.assertEqual(list(session.logits()), adapted)
        self.assert_status(Status.FILE_NOT_FOUND, self.model.adapter, path + ".none")

    def test_embedder(self) -> None:
        with self.model.embedder(pooling=emberlm.Pooling.MEAN) as embedder:
            both = embedder.embed(["Once upon a time", "the king"])
            self.assertEqual([len(vector) for vector in both], [embedder.info()["dimension"]] * 2)
            self.assertAlmostEqual(sum(x * x for x in both[0]), 1, places=5)
            self.assertEqual(embedder.embed(["the king"]), both[1:])
            self.assertEqual(embedder.embed_tokens([self.model.tokenize(text) for text in ("Once upon a time", "the king")]), both)
            self.assert_status(Status.INVALID_ARGUMENT, embedder.rerank, "a", ["b"])
            embedder.interrupt()
            self.assert_status(Status.INTERRUPTED, embedder.embed, ["the king"])
        with self.model.embedder(pooling=emberlm.Pooling.NONE) as embedder:
            self.assertEqual(len(embedder.embed(["the king"])), len(self.model.tokenize("the king")))
        adapter = self.model.adapter(os.path.join(os.path.dirname(MODEL), "../tests/data/adapters/hamlet.gguf"))
        with self.model.embedder(pooling=emberlm.Pooling.MEAN, adapters=[(adapter, 1.0)]) as embedder:
            adapter.close()
            self.assertNotEqual(embedder.embed(["the king"]), both[1:])
        self.assert_status(Status.INVALID_HANDLE, lambda: self.model.embedder(adapters=[adapter]))

    def test_drafts(self) -> None:
        with self.model.session() as session:
            session.draft()
            self.assertEqual(session.generate(self.prompt, limit=len(self.greedy)).text, self.model.detokenize(self.greedy))
            session.rewind(0)
            session.draft(DraftSource.MODEL, self.model, max_drafts=4)
            session.generate(self.prompt, limit=40)
            speculation = session.speculation()
            self.assertEqual((speculation.source, speculation.max_drafts), (DraftSource.MODEL, 4))
            self.assertLessEqual(speculation.accepted, speculation.drafted)
            session.draft(DraftSource.NONE)
            self.assertEqual(session.speculation().source, DraftSource.NONE)
            self.assert_status(Status.INVALID_ARGUMENT, session.draft, max_drafts=99)

    def test_text_stream(self) -> None:
        with self.model.text_stream(stops=["brush"], skip_special=True) as words:
            self.assertEqual("".join(words.push([token]) for token in self.greedy), " One cold morning, she lost her blue ")
            self.assertTrue(words.stopped)
            self.assertEqual(words.finish(), "")
            self.assertFalse(words.stopped)
            self.assertEqual(words.push(reference_tokens("json_tokens")) + words.finish(), REFERENCE["json_text"])

    def test_groups(self) -> None:
        with emberlm.Group(0, 2, timeout_ms=500) as first, emberlm.Group(1, 2, first.id) as second:
            self.assertIn("/2/", first.id)
            self.assertEqual(second.id, first.id)
            self.assert_status(Status.INVALID_ARGUMENT, lambda: emberlm.Group(2, 2, first.id))
            self.assert_status(Status.INVALID_ARGUMENT, lambda: emberlm.Group(0, 2, address="0.0.0.0"))
            # A CPU has no share of each layer.
            self.assert_status(Status.UNSUPPORTED, lambda: emberlm.Model(os.environ["EMBERLM_MODEL"], group=first))
            self.assert_status(Status.INVALID_ARGUMENT, lambda: emberlm.Model(os.environ["EMBERLM_MODEL"], group=first))

    def test_started(self) -> None:
        with self.model.session() as session:
            session.prefill_start(self.prompt)
            while not (progress := session.prefill_poll())[0]:
                time.sleep(0.001)
            self.assertEqual(progress[1], len(self.prompt))
            session.decode_start(3)
            self.assert_status(Status.DECODE_PENDING, session.decode)
            made: list[int] = []
            while len(made) < 3:
                token = session.decode_poll()
                made += [token] if token is not None else []
            self.assertEqual(made, self.greedy[:3])
            self.assert_status(Status.NOTHING_PENDING, session.decode_poll)
            with session.fork() as fork:
                self.assertEqual(emberlm.decode_batch([session, fork]), [self.greedy[3]] * 2)
            self.assert_status(Status.INVALID_ARGUMENT, emberlm.decode_batch, [session, session])

    def test_states(self) -> None:
        with self.model.session() as session, tempfile.TemporaryDirectory() as folder:
            session.prefill(self.prompt)
            path = Path(folder) / "state"
            session.save(path)
            self.assertEqual(emberlm.state_info(path)["position"], len(self.prompt))
            with self.model.restore(path) as restored:
                self.assertEqual(restored.decode(), self.greedy[0])
            memory = io.BytesIO()
            session.save_to(memory, emberlm.StateKind.TOKENS)
            memory.seek(0)
            with self.model.restore_from(memory) as restored:
                self.assertEqual(restored.decode(), self.greedy[0])
            self.assert_status(Status.FILE_NOT_FOUND, self.model.restore, Path(folder) / "none")
            with self.assertRaises(ValueError):
                memory.close()
                session.save_to(memory)
            session.evict()
            session.resume()
            session.erase(2, 3)
            self.assertEqual(session.tokens(), self.prompt[:2] + self.prompt[5:])


class Lives(Case):
    def test_close(self) -> None:
        model = emberlm.Model(MODEL)
        session = model.session()
        words = model.text_stream()
        model.close()
        model.close()
        self.assertTrue(model.closed)
        self.assert_status(Status.INVALID_HANDLE, model.info)
        self.assert_status(Status.INVALID_HANDLE, model.session)
        session.prefill(self.prompt)
        self.assertEqual(session.decode(), self.greedy[0])
        self.assertEqual(len(session.logits()), 1424)
        session.close()
        for call in (session.decode, session.fork, session.interrupt, session.tokens, session.logits, session.generate):
            self.assert_status(Status.INVALID_HANDLE, call)
        words.close()
        self.assert_status(Status.INVALID_HANDLE, words.push, [1])

    def test_garbage(self) -> None:
        session = self.model.session()
        raw, position = session._raw, ctypes.c_size_t()
        self.assertEqual(_library.lib.ember_session_position(raw, ctypes.byref(position), None), Status.OK)
        del session
        gc.collect()
        self.assertEqual(_library.lib.ember_session_position(raw, ctypes.byref(position), None), Status.INVALID_HANDLE)

    def test_busy(self) -> None:
        with self.model.session() as session:
            seen: list[Status] = []

            def other() -> None:
                try:
                    session.decode()
                except EmberError as error:
                    seen.append(error.status)

            def on_text(text: str, token: emberlm.Token | None) -> None:
                thread = threading.Thread(target=other)
                thread.start()
                thread.join()

            session.generate(self.prompt, limit=2, on_text=on_text)
            self.assertEqual(seen, [Status.BUSY] * 2)

    def test_started(self) -> None:
        with emberlm.Event() as event, emberlm.Load(os.environ["EMBERLM_MODEL"], event=event) as load:
            model = load.poll()
            while model is None:
                select.select([event.fileno()], [], [], 60)
                event.clear()
                model = load.poll()
            self.assertEqual(load.fraction, 1)
            self.assert_status(Status.NOTHING_PENDING, load.poll)
            load.cancel()
            with model.session() as session, model.session() as other, model.session() as empty:
                session.set_event(event)
                want = other.generate(self.prompt, limit=8)
                for wait in (True, False):
                    session.rewind(0)
                    session.generate_start(self.prompt, limit=8)
                    self.assert_status(Status.DECODE_PENDING, session.decode)
                    text, token = "", emberlm.Token(0, False, False, None)
                    while token is not None:
                        event.clear()
                        piece = session.generate_next(wait=wait)
                        if piece is None:
                            select.select([event.fileno()], [], [], 60)
                            continue
                        text, token = text + piece[0], piece[1]
                    made = session.generate_finish()
                    self.assertEqual((text, made.end, made.token), (want.text, want.end, want.token))
                emberlm.decode_batch_start([session, other])
                made = [session.decode_poll(), other.decode_poll()]
                while None in made:
                    made = [old if old is not None else s.decode_poll() for old, s in zip(made, (session, other))]
                self.assertEqual(made[0], made[1])
                each = emberlm.decode_each([session, empty])
                self.assertEqual((each[0].id, each[1].status), (other.decode(), Status.NO_INPUT))
                self.assert_status(Status.NO_INPUT, emberlm.decode_batch, [empty])
                session.set_sampling(Sampling(logprobs=1))
                token = session.decode_token()
                self.assertEqual(token.logprob, session.logprobs().chosen)
                model.close()
                self.assertEqual(session.model().info()["vocab_size"], session.info()["vocab_size"])
                self.assertEqual(len(session.logits()), session.info()["vocab_size"])

    def test_interrupt(self) -> None:
        with self.model.session() as session:
            started = threading.Event()
            timer = threading.Thread(target=lambda: (started.wait(), session.interrupt()))
            timer.start()
            made = session.generate(self.prompt, ignore_end=True, on_text=lambda text, token: started.set())
            timer.join()
            self.assertIn(made.end, (GenerateEnd.INTERRUPTED, GenerateEnd.CONTEXT_FULL))
            session.clear_interrupt()
            session.interrupt()
            session.rewind(0)
            self.assert_status(Status.INTERRUPTED, session.prefill, self.prompt)
            session.interrupt()
            session.clear_interrupt()
            session.prefill(self.prompt)

    def test_threads(self) -> None:
        texts: list[str] = []

        def tell() -> None:
            with self.model.session() as session:
                texts.append(session.generate(self.prompt, limit=40).text)

        threads = [threading.Thread(target=tell) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(texts, [REFERENCE["greedy_text"]] * 4)

    def test_log(self) -> None:
        heard: list[str] = []
        emberlm.set_log(lambda level, message: heard.append(message))
        emberlm.Model(MODEL).close()
        emberlm.set_log(lambda level, message: 1 / 0)
        count = len(heard)
        emberlm.Model(MODEL).close()
        emberlm.set_log(None)
        self.assertGreater(count, 0)
        self.assertEqual(len(heard), count)


if __name__ == "__main__":
    unittest.main()
