package gosdk

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"
)

func (r *run) models(ctx context.Context, client openai.Client) error {
	var names []string
	pages := client.Models.ListAutoPaging(ctx)
	for pages.Next() {
		names = append(names, pages.Current().ID)
	}
	if pages.Err() != nil {
		return pages.Err()
	}
	r.result.Text = strings.Join(names, ",")
	one, err := client.Models.Get(ctx, r.Model)
	if err == nil {
		r.result.Model = one.ID
	}
	return err
}

func (r *run) anthropicModels(ctx context.Context, client anthropic.Client) error {
	var names []string
	pages := client.Models.ListAutoPaging(ctx, anthropic.ModelListParams{Limit: anthropic.Int(2)})
	for pages.Next() {
		names = append(names, pages.Current().ID)
	}
	if pages.Err() != nil {
		return pages.Err()
	}
	r.result.Text = strings.Join(names, ",")
	one, err := client.Models.Get(ctx, r.Model, anthropic.ModelGetParams{})
	if err == nil {
		r.result.Model = one.ID
	}
	return err
}

// stored makes a response and does with it all that can be done.
func (r *run) stored(ctx context.Context, client openai.Client) error {
	made, err := client.Responses.New(ctx, responses.ResponseNewParams{
		Model: r.Model, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(r.Prompt)},
	})
	if err != nil {
		return err
	}
	got, err := client.Responses.Get(ctx, made.ID, responses.ResponseGetParams{})
	if err != nil {
		return err
	}
	r.response(*got)
	err = drain(r, client.Responses.GetStreaming(ctx, made.ID, responses.ResponseGetParams{}), func(event responses.ResponseStreamEventUnion) {
		r.result.LastEvent = event.Type
	})
	if err != nil {
		return err
	}
	items, err := client.Responses.InputItems.List(ctx, made.ID, responses.InputItemListParams{})
	if err != nil {
		return err
	}
	if len(items.Data) != 1 {
		return errors.New("the response has another number of input items: " + strconv.Itoa(len(items.Data)))
	}
	cancelled, err := client.Responses.Cancel(ctx, made.ID)
	if err != nil {
		return err
	}
	r.result.FinishReason = string(cancelled.Status)
	return client.Responses.Delete(ctx, made.ID)
}

func (r *run) inputTokens(ctx context.Context, client openai.Client) error {
	done, err := client.Responses.InputTokens.Count(ctx, responses.InputTokenCountParams{
		Model: openai.String(r.Model), Input: responses.InputTokenCountParamsInputUnion{OfString: openai.String(r.Prompt)},
	})
	if err != nil {
		return err
	}
	r.result.Usage = usageJSON(done.RawJSON())
	return nil
}

func (r *run) compact(ctx context.Context, client openai.Client) error {
	input := openai.String(r.Prompt)
	made, err := client.Responses.New(ctx, responses.ResponseNewParams{Model: r.Model, Input: responses.ResponseNewParamsInputUnion{OfString: input}})
	if err != nil {
		return err
	}
	done, err := client.Responses.Compact(ctx, responses.ResponseCompactParams{
		Model: responses.ResponseCompactParamsModel(r.Model), PreviousResponseID: openai.String(made.ID), Input: responses.ResponseCompactParamsInputUnion{OfString: input},
	})
	if err != nil {
		return err
	}
	var types []string
	for _, item := range done.Output {
		types = append(types, item.Type)
		r.result.Text = item.EncryptedContent
	}
	r.result.FinishReason, r.result.Usage = strings.Join(types, ","), usageJSON(done.Usage.RawJSON())
	return nil
}

func (r *run) speech(ctx context.Context, client openai.Client) error {
	done, err := client.Audio.Speech.New(ctx, openai.AudioSpeechNewParams{
		Model: r.Model, Input: r.Prompt, Voice: openai.AudioSpeechNewParamsVoiceUnion{OfString: openai.String("alloy")},
	})
	if err != nil {
		return err
	}
	sound, err := io.ReadAll(done.Body)
	sum := sha256.Sum256(sound)
	r.result.Text = hex.EncodeToString(sum[:])
	return errors.Join(err, done.Body.Close())
}

func (r *run) transcriptions(ctx context.Context, client openai.Client) error {
	done, err := client.Audio.Transcriptions.New(ctx, openai.AudioTranscriptionNewParams{
		File: openai.File(bytes.NewReader([]byte("ID3 sound")), "a.mp3", "audio/mpeg"), Model: r.Model, Prompt: openai.String(r.Prompt),
	})
	if err != nil {
		return err
	}
	r.result.Text, r.result.Usage = done.Text, usageJSON(done.JSON.Usage.Raw())
	return nil
}

func (r *run) images(ctx context.Context, client openai.Client) error {
	done, err := client.Images.Generate(ctx, openai.ImageGenerateParams{Model: r.Model, Prompt: r.Prompt, N: openai.Int(2)})
	if err != nil {
		return err
	}
	r.result.Text, r.result.Usage = strconv.Itoa(len(done.Data)), usageJSON(done.Usage.RawJSON())
	return nil
}
