// A chat in the terminal: each turn passes the whole conversation, of which only what is new is read.
// usage: chat.exe model.gguf [system prompt] < questions

using System;
using System.Collections.Generic;
using EmberLM;

internal static class Chat
{
    private static void Main(string[] args)
    {
        var messages = new List<Message>();
        if (args.Length == 2) messages.Add(new Message("system", args[1]));
        using (var model = Model.Load(args[0]))
        using (var session = new Session(model))
        {
            Console.Write("> ");
            for (string line; (line = Console.ReadLine()) != null; Console.Write("\n> "))
            {
                messages.Add(new Message("user", line));
                var answer = session.Chat(messages, new GenerateOptions { OnText = (text, token) => { Console.Write(text); return true; } });
                messages.Add(new Message("assistant", answer.Text));
            }
        }
        Console.WriteLine();
    }
}
