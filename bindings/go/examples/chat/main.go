// A chat in the terminal: each turn passes the whole conversation, of which only what is new is read.
//
// usage: chat model.gguf [system prompt] < questions
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"

	"emberlm"
)

func main() {
	if len(os.Args) < 2 || len(os.Args) > 3 {
		log.Fatal("usage: chat model.gguf [system prompt]")
	}
	model, err := emberlm.Load(os.Args[1], nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	session, err := model.NewSession(emberlm.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()

	var messages []emberlm.Message
	if len(os.Args) == 3 {
		messages = append(messages, emberlm.Message{Role: "system", Content: os.Args[2]})
	}
	show := func(text string, _ emberlm.Token) error {
		_, err := fmt.Print(text)
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for fmt.Print("> "); lines.Scan(); fmt.Print("\n> ") {
		messages = append(messages, emberlm.Message{Role: "user", Content: lines.Text()})
		answer, err := session.Chat(context.Background(), messages, emberlm.GenerateOptions{OnText: show})
		if err != nil {
			log.Fatal(err)
		}
		messages = append(messages, emberlm.Message{Role: "assistant", Content: answer.Text})
	}
	fmt.Println()
}
