// A character of a game describes itself as JSON: a schema leaves the model no other way to answer.
// usage: json.exe model.gguf

using System;
using EmberLM;

internal static class Json
{
    private const string Schema = @"{
        ""type"": ""object"",
        ""properties"": {
            ""name"":  {""type"": ""string"", ""minLength"": 1, ""maxLength"": 20},
            ""role"":  {""enum"": [""guard"", ""baker"", ""fisher"", ""potter""]},
            ""place"": {""type"": ""string"", ""maxLength"": 30},
            ""item"":  {""type"": ""string"", ""maxLength"": 30}
        },
        ""required"": [""name"", ""role"", ""place"", ""item""],
        ""additionalProperties"": false
    }";

    private static void Main(string[] args)
    {
        using (var model = Model.Load(args[0]))
        using (var session = new Session(model))
        {
            session.SetJsonSchema(Schema);
            var answer = session.Chat(new[]
            {
                new Message("system", "Hanna the guard is at the lighthouse and has a white map. Olga the potter is at the pond and has a small apple."),
                new Message("user", "Describe Hanna as JSON."),
            });
            Console.WriteLine(answer.Text);
        }
    }
}
