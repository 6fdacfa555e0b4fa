"""Runs cases with the official OpenAI and Anthropic Python SDKs.

Reads a JSON list of cases on stdin and prints one JSON result a line, in the
same order. The fields are documented in the Go package e2e/sdk/sdkcase. The
SDKs are used as any program would use them: only base URL and key are set.
"""

import hashlib
import json
import os
import sys
import time

import anthropic
import openai

BASE_URL = os.environ["KEYWAY_BASE_URL"].rstrip("/")
API_KEY = os.environ["KEYWAY_API_KEY"]
MODEL = os.environ["KEYWAY_MODEL"]

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL_NAME = "get_weather"
TOOL_TEXT = "Tells the weather of a city."


def dump(value):
    """An SDK model as plain JSON, without what was not there."""
    return value.model_dump(mode="json", exclude_none=True) if value is not None else None


class Run:
    """One case and the result that grows while it runs."""

    def __init__(self, case):
        self.case = case
        self.model = case.get("model") or MODEL
        self.begin = time.monotonic()
        self.result = {"case": case["name"], "ok": False, "text": "", "chunks": 0, "attempts": 0}

    def ms(self):
        return round((time.monotonic() - self.begin) * 1000, 3)

    def on_request(self, _request):
        self.result["attempts"] += 1

    def on_response(self, response):
        self.result["status"] = response.status_code
        self.result["headers"] = {name.lower(): value for name, value in response.headers.items()}

    def options(self, sdk, base_url):
        hooks = {"request": [self.on_request], "response": [self.on_response]}
        return {
            "base_url": base_url,
            "api_key": self.case.get("api_key") or API_KEY,
            "max_retries": self.case.get("max_retries", 0),
            "timeout": self.case.get("timeout_seconds") or 60,
            "http_client": sdk.DefaultHttpxClient(event_hooks=hooks),
        }

    def extras(self):
        extra = {}
        if self.case.get("headers"):
            extra["extra_headers"] = self.case["headers"]
        if self.case.get("body"):
            extra["extra_body"] = self.case["body"]
        return extra

    def chunk(self):
        """Counts one chunk; True when the case wants to leave now."""
        if self.result["chunks"] == 0:
            self.result["first_chunk_ms"] = self.ms()
        self.result["chunks"] += 1
        if self.case.get("cancel_after") == self.result["chunks"]:
            self.result["cancelled"] = True
        return self.result.get("cancelled", False)

    def note(self, obj):
        self.result["id"], self.result["model"] = getattr(obj, "id", ""), getattr(obj, "model", "")

    # Each operation fills the result from what the SDK hands over.

    def chat(self, client):
        case, kwargs = self.case, self.extras()
        messages = [{"role": "user", "content": case.get("prompt", "")}]
        if case.get("system"):
            messages.insert(0, {"role": "system", "content": case["system"]})
        if case.get("max_tokens"):
            kwargs["max_completion_tokens"] = case["max_tokens"]
        if case.get("n"):
            kwargs["n"] = case["n"]
        if case.get("tools"):
            function = {"name": TOOL_NAME, "description": TOOL_TEXT, "parameters": SCHEMA}
            kwargs["tools"] = [{"type": "function", "function": function}]
            kwargs["tool_choice"] = "required"
        if not case.get("stream"):
            done = client.chat.completions.create(model=self.model, messages=messages, **kwargs)
            self.note(done)
            self.result["usage"] = dump(done.usage)
            if not done.choices:
                return
            choice = done.choices[0]
            self.result.update(text=choice.message.content or "", finish_reason=choice.finish_reason)
            if choice.message.tool_calls:
                calls = [call.function for call in choice.message.tool_calls]
                self.result["tool_calls"] = [{"name": f.name, "arguments": f.arguments} for f in calls]
            return
        if case.get("include_usage") is not None:
            kwargs["stream_options"] = {"include_usage": case["include_usage"]}
        stream = client.chat.completions.create(model=self.model, messages=messages, stream=True, **kwargs)
        self.openai_stream(stream, self.chat_delta)

    def openai_stream(self, stream, take):
        for chunk in stream:
            self.note(chunk)
            if getattr(chunk, "usage", None) is not None:
                self.result["usage"] = dump(chunk.usage)
            for choice in getattr(chunk, "choices", None) or []:
                if choice.index == 0:
                    take(choice)
                    self.result["finish_reason"] = choice.finish_reason or self.result.get("finish_reason")
            if self.chunk():
                stream.close()
                break

    def chat_delta(self, choice):
        self.result["text"] += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            calls = self.result.setdefault("tool_calls", [])
            if call.index == len(calls):
                calls.append({"name": call.function.name, "arguments": ""})
            calls[call.index]["arguments"] += call.function.arguments or ""

    def completions(self, client):
        case, kwargs = self.case, self.extras()
        if case.get("max_tokens"):
            kwargs["max_tokens"] = case["max_tokens"]
        if not case.get("stream"):
            done = client.completions.create(model=self.model, prompt=case.get("prompt", ""), **kwargs)
            self.note(done)
            choice = done.choices[0]
            self.result.update(text=choice.text, finish_reason=choice.finish_reason, usage=dump(done.usage))
            return
        if case.get("include_usage") is not None:
            kwargs["stream_options"] = {"include_usage": case["include_usage"]}
        stream = client.completions.create(model=self.model, prompt=case.get("prompt", ""), stream=True, **kwargs)

        def take(choice):
            self.result["text"] += choice.text

        self.openai_stream(stream, take)

    def responses(self, client):
        case, kwargs = self.case, self.extras()
        if case.get("system"):
            kwargs["instructions"] = case["system"]
        if case.get("max_tokens"):
            kwargs["max_output_tokens"] = case["max_tokens"]
        if case.get("tools"):
            kwargs["tools"] = [
                {"type": "function", "name": TOOL_NAME, "description": TOOL_TEXT, "parameters": SCHEMA, "strict": False}
            ]
            kwargs["tool_choice"] = "required"
        if not case.get("stream"):
            self.response(client.responses.create(model=self.model, input=case.get("prompt", ""), **kwargs))
            return
        stream = client.responses.create(model=self.model, input=case.get("prompt", ""), stream=True, **kwargs)
        text = ""
        for event in stream:
            self.result["last_event"] = event.type
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type in ("response.completed", "response.incomplete", "response.failed"):
                self.response(event.response)
            self.result["text"] = text
            if self.chunk():
                stream.close()
                break

    def response(self, response):
        self.note(response)
        self.result.update(text=response.output_text, finish_reason=response.status, usage=dump(response.usage))
        if response.incomplete_details is not None:
            self.result["finish_reason"] = response.incomplete_details.reason
        calls = [item for item in response.output if item.type == "function_call"]
        if calls:
            self.result["tool_calls"] = [{"name": c.name, "arguments": c.arguments} for c in calls]

    def messages(self, client):
        case, kwargs = self.case, self.extras()
        if case.get("system"):
            kwargs["system"] = case["system"]
        if case.get("tools"):
            kwargs["tools"] = [{"name": TOOL_NAME, "description": TOOL_TEXT, "input_schema": SCHEMA}]
            kwargs["tool_choice"] = {"type": "any"}
        turns = [{"role": "user", "content": case.get("prompt", "")}]
        kwargs.update(model=self.model, messages=turns, max_tokens=case.get("max_tokens") or 256)
        if case.get("stream"):
            self.message_stream(client.messages.create(stream=True, **kwargs))
            return
        done = client.messages.create(**kwargs)
        self.note(done)
        text = "".join(block.text for block in done.content if block.type == "text")
        self.result.update(text=text, finish_reason=done.stop_reason, usage=dump(done.usage))
        calls = [block for block in done.content if block.type == "tool_use"]
        if calls:
            self.result["tool_calls"] = [{"name": c.name, "arguments": json.dumps(c.input, separators=(",", ":"))} for c in calls]

    def message_stream(self, stream):
        for event in stream:
            self.result["last_event"] = event.type
            if event.type == "message_start":
                self.note(event.message)
                self.result["usage"] = dump(event.message.usage)
            elif event.type == "content_block_start" and event.content_block.type == "tool_use":
                self.result.setdefault("tool_calls", []).append({"name": event.content_block.name, "arguments": ""})
            elif event.type == "content_block_delta" and event.delta.type == "text_delta":
                self.result["text"] += event.delta.text
            elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                if self.result.get("tool_calls"):  # the input of a server's tool comes the same way
                    self.result["tool_calls"][-1]["arguments"] += event.delta.partial_json
            elif event.type == "message_delta":
                self.result["finish_reason"] = event.delta.stop_reason or self.result.get("finish_reason")
                # Cumulative: what is present replaces what was.
                self.result["usage"] = {**(self.result.get("usage") or {}), **(dump(event.usage) or {})}
            if self.chunk():
                stream.close()
                break

    def count_tokens(self, client):
        turns = [{"role": "user", "content": self.case.get("prompt", "")}]
        self.result["usage"] = dump(client.messages.count_tokens(model=self.model, messages=turns, **self.extras()))

    def embeddings(self, client):
        kwargs = self.extras()
        for name in ("encoding_format", "dimensions"):
            if self.case.get(name):
                kwargs[name] = self.case[name]
        inputs = self.case.get("inputs") or self.case.get("prompt", "")
        done = client.embeddings.create(model=self.model, input=inputs, **kwargs)
        self.result.update(model=done.model, embeddings=[item.embedding for item in done.data], usage=dump(done.usage))

    def models(self, client):
        self.result["text"] = ",".join(model.id for model in client.models.list())
        self.result["model"] = client.models.retrieve(self.model).id

    def anthropic_models(self, client):
        self.result["text"] = ",".join(model.id for model in client.models.list(limit=2))
        self.result["model"] = client.models.retrieve(self.model).id

    def stored(self, client):
        made = client.responses.create(model=self.model, input=self.case.get("prompt", ""))
        self.response(client.responses.retrieve(made.id))
        for event in client.responses.retrieve(made.id, stream=True):
            self.result["last_event"] = event.type
            self.chunk()
        if len(list(client.responses.input_items.list(made.id))) != 1:
            raise ValueError("the response has another number of input items")
        self.result["finish_reason"] = client.responses.cancel(made.id).status
        client.responses.delete(made.id)

    def input_tokens(self, client):
        done = client.responses.input_tokens.count(model=self.model, input=self.case.get("prompt", ""))
        self.result["usage"] = dump(done)

    def compact(self, client):
        given = self.case.get("prompt", "")
        made = client.responses.create(model=self.model, input=given)
        done = client.responses.compact(model=self.model, previous_response_id=made.id, input=given)
        self.result["text"] = done.output[-1].encrypted_content
        self.result["finish_reason"] = ",".join(item.type for item in done.output)
        self.result["usage"] = dump(done.usage)

    def speech(self, client):
        done = client.audio.speech.create(model=self.model, voice="alloy", input=self.case.get("prompt", ""))
        self.result["text"] = hashlib.sha256(done.read()).hexdigest()

    def transcriptions(self, client):
        done = client.audio.transcriptions.create(
            model=self.model, file=("a.mp3", b"ID3 sound"), prompt=self.case.get("prompt", "")
        )
        self.result.update(text=done.text, usage=dump(done.usage))

    def images(self, client):
        done = client.images.generate(model=self.model, prompt=self.case.get("prompt", ""), n=2)
        self.result.update(text=str(len(done.data)), usage=dump(done.usage))

    def run(self):
        api = self.case["api"]
        try:
            if api in ("messages", "count_tokens", "anthropic_models"):
                with anthropic.Anthropic(**self.options(anthropic, BASE_URL)) as client:
                    getattr(self, api)(client)
            else:
                with openai.OpenAI(**self.options(openai, BASE_URL + "/v1")) as client:
                    getattr(self, api)(client)
            self.result["ok"] = True
        except Exception as error:  # whatever the SDK raises is the result
            self.result["error"] = describe(error)
        self.result["ms"] = self.ms()
        return self.result


def describe(error):
    """What a program can learn from an SDK's exception."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else {}
    if not isinstance(inner, dict):
        inner = {}
    out = {
        "class": type(error).__name__,
        "status": getattr(error, "status_code", None),
        "type": getattr(error, "type", None) or inner.get("type"),
        "code": code_of(error, inner),
        "param": getattr(error, "param", None),
        "message": inner.get("message") or str(error),
        "request_id": getattr(error, "request_id", None),
    }
    return {name: value for name, value in out.items() if value is not None}


def code_of(error, inner):
    """The error's code as text: some providers write a number."""
    code = getattr(error, "code", None) or (inner.get("details") or {}).get("error_code")
    return None if code is None else str(code)


def main():
    for case in json.load(sys.stdin):
        print(json.dumps(Run(case).run()), flush=True)


if __name__ == "__main__":
    main()
