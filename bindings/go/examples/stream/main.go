// Continues a text and shows it while it is made.
//
// usage: stream model.gguf [prompt]
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"emberlm"
)

func main() {
	if len(os.Args) < 2 || len(os.Args) > 3 {
		log.Fatal("usage: stream model.gguf [prompt]")
	}
	prompt := "Once upon a time, Mira the baker lived in Oakvale."
	if len(os.Args) == 3 {
		prompt = os.Args[2]
	}
	if err := run(os.Args[1], prompt); err != nil {
		log.Fatal(err)
	}
}

func run(path, prompt string) error {
	model, err := emberlm.Load(path, nil)
	if err != nil {
		return err
	}
	defer model.Close()
	session, err := model.NewSession(emberlm.SessionOptions{Sampling: emberlm.Sampling{Temperature: 0.8, Seed: 3}})
	if err != nil {
		return err
	}
	defer session.Close()
	tokens, err := model.Tokenize(prompt, emberlm.TokenizeOptions{})
	if err != nil {
		return err
	}
	fmt.Print(prompt)
	made, err := session.Generate(context.Background(), tokens, emberlm.GenerateOptions{
		Limit: 200,
		Stops: []string{"\n\n"},
		OnText: func(text string, _ emberlm.Token) error {
			_, err := fmt.Print(text)
			return err
		},
	})
	fmt.Printf("\n[%d tokens]\n", made.Tokens)
	return err
}
