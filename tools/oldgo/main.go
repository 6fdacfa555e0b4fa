// Command oldgo reads one chat stream as openai-go 3.42.0 does, the last version
// that falls over heartbeats of more than one line, and prints its text.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/openai/openai-go/v3/packages/ssestream"
)

type chunk struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	req, err := http.NewRequest(http.MethodPost, os.Getenv("KEYWAY_BASE_URL")+"/v1/chat/completions", strings.NewReader(os.Getenv("KEYWAY_BODY")))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+os.Getenv("KEYWAY_API_KEY"))
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	stream := ssestream.NewStream[chunk](ssestream.NewDecoder(resp), nil)
	for stream.Next() {
		for _, choice := range stream.Current().Choices {
			fmt.Print(choice.Delta.Content)
		}
	}
	return stream.Err()
}
