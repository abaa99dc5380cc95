// Continues a text and shows it while it is made.
// usage: stream.exe model.gguf [prompt]

using System;
using EmberLM;

internal static class Story
{
    private static void Main(string[] args)
    {
        var prompt = args.Length == 2 ? args[1] : "Once upon a time, Mira the baker lived in Oakvale.";
        using (var model = Model.Load(args[0]))
        using (var session = new Session(model, new SessionOptions { Sampling = new Sampling { Temperature = 0.8f, Seed = 3 } }))
        {
            Console.Write(prompt);
            foreach (var text in session.Stream(model.Tokenize(prompt), 200, "\n\n")) Console.Write(text);
            Console.WriteLine();
        }
    }
}
