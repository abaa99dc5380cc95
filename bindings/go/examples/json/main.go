// A character of a game describes itself as JSON: a schema leaves the model no other way to answer.
//
// usage: json model.gguf
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"emberlm"
)

const schema = `{
	"type": "object",
	"properties": {
		"name":  {"type": "string", "minLength": 1, "maxLength": 20},
		"role":  {"enum": ["guard", "baker", "fisher", "potter"]},
		"place": {"type": "string", "maxLength": 30},
		"item":  {"type": "string", "maxLength": 30}
	},
	"required": ["name", "role", "place", "item"],
	"additionalProperties": false
}`

var messages = []emberlm.Message{
	{Role: "system", Content: "Hanna the guard is at the lighthouse and has a white map. Olga the potter is at the pond and has a small apple."},
	{Role: "user", Content: "Describe Hanna as JSON."},
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: json model.gguf")
	}
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(path string) error {
	model, err := emberlm.Load(path, nil)
	if err != nil {
		return err
	}
	defer model.Close()
	session, err := model.NewSession(emberlm.SessionOptions{})
	if err != nil {
		return err
	}
	defer session.Close()
	if err := session.SetJSONSchema(schema); err != nil {
		return err
	}
	answer, err := session.Chat(context.Background(), messages, emberlm.GenerateOptions{})
	if err != nil {
		return err
	}
	var person struct{ Name, Role, Place, Item string }
	if err := json.Unmarshal([]byte(answer.Text), &person); err != nil {
		return err
	}
	fmt.Printf("%s (%s) stands at %s with a %s.\n", person.Name, person.Role, person.Place, person.Item)
	return nil
}
