// Runs cases with the official OpenAI and Anthropic Node SDKs.
//
// Reads a JSON list of cases on stdin and prints one JSON result a line, in
// the same order. The fields are documented in the Go package e2e/sdk/sdkcase.
// The SDKs are used as any program would use them; their documented fetch
// option only counts requests and notes response headers.

import { createHash } from 'node:crypto';

import Anthropic from '@anthropic-ai/sdk';
import OpenAI, { toFile } from 'openai';

const baseURL = process.env.KEYWAY_BASE_URL.replace(/\/+$/, '');
const apiKey = process.env.KEYWAY_API_KEY;
const defaultModel = process.env.KEYWAY_MODEL;

const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const toolName = 'get_weather';
const toolText = 'Tells the weather of a city.';

// Run is one case and the result that grows while it runs.
class Run {
  constructor(c) {
    this.case = c;
    this.model = c.model || defaultModel;
    this.begin = performance.now();
    this.result = { case: c.name, ok: false, text: '', chunks: 0, attempts: 0 };
  }

  ms() {
    return Math.round((performance.now() - this.begin) * 1000) / 1000;
  }

  clientOptions(url) {
    return {
      baseURL: url,
      apiKey: this.case.api_key || apiKey,
      maxRetries: this.case.max_retries ?? 0,
      timeout: (this.case.timeout_seconds || 60) * 1000,
      fetch: async (...args) => {
        this.result.attempts++;
        const response = await fetch(...args);
        this.result.status = response.status;
        this.result.headers = Object.fromEntries(response.headers);
        return response;
      },
    };
  }

  requestOptions() {
    return this.case.headers ? { headers: this.case.headers } : {};
  }

  // chunk counts one chunk and says whether the case wants to leave now.
  chunk() {
    if (this.result.chunks === 0) this.result.first_chunk_ms = this.ms();
    this.result.chunks++;
    if (this.case.cancel_after === this.result.chunks) this.result.cancelled = true;
    return this.result.cancelled === true;
  }

  note(object) {
    this.result.id = object.id;
    this.result.model = object.model;
  }

  async chat(client) {
    const c = this.case;
    const body = { model: this.model, messages: [{ role: 'user', content: c.prompt ?? '' }], ...c.body };
    if (c.system) body.messages.unshift({ role: 'system', content: c.system });
    if (c.max_tokens) body.max_completion_tokens = c.max_tokens;
    if (c.n) body.n = c.n;
    if (c.tools) {
      body.tools = [{ type: 'function', function: { name: toolName, description: toolText, parameters: schema } }];
      body.tool_choice = 'required';
    }
    if (c.stream) return this.openAIStream(client.chat.completions, body, (choice) => this.chatDelta(choice));
    const done = await client.chat.completions.create(body, this.requestOptions());
    this.note(done);
    this.result.usage = done.usage;
    if (!done.choices?.length) return;
    const { message, finish_reason } = done.choices[0];
    Object.assign(this.result, { text: message.content ?? '', finish_reason });
    if (message.tool_calls) {
      this.result.tool_calls = message.tool_calls.map((t) => ({ name: t.function.name, arguments: t.function.arguments }));
    }
  }

  async openAIStream(resource, body, take) {
    body.stream = true;
    if (this.case.include_usage !== undefined) body.stream_options = { include_usage: this.case.include_usage };
    const stream = await resource.create(body, this.requestOptions());
    for await (const chunk of stream) {
      this.note(chunk);
      if (chunk.usage) this.result.usage = chunk.usage;
      for (const choice of chunk.choices ?? []) {
        if (choice.index !== 0) continue;
        take(choice);
        this.result.finish_reason = choice.finish_reason ?? this.result.finish_reason;
      }
      if (this.chunk()) {
        stream.controller.abort();
        break;
      }
    }
  }

  chatDelta(choice) {
    this.result.text += choice.delta.content ?? '';
    for (const call of choice.delta.tool_calls ?? []) {
      const calls = (this.result.tool_calls ??= []);
      if (call.index === calls.length) calls.push({ name: call.function.name, arguments: '' });
      calls[call.index].arguments += call.function.arguments ?? '';
    }
  }

  async completions(client) {
    const c = this.case;
    const body = { model: this.model, prompt: c.prompt ?? '', ...c.body };
    if (c.max_tokens) body.max_tokens = c.max_tokens;
    if (c.stream) {
      return this.openAIStream(client.completions, body, (choice) => {
        this.result.text += choice.text;
      });
    }
    const done = await client.completions.create(body, this.requestOptions());
    this.note(done);
    const { text, finish_reason } = done.choices[0];
    Object.assign(this.result, { text, finish_reason, usage: done.usage });
  }

  async responses(client) {
    const c = this.case;
    const body = { model: this.model, input: c.prompt ?? '', ...c.body };
    if (c.system) body.instructions = c.system;
    if (c.max_tokens) body.max_output_tokens = c.max_tokens;
    if (c.tools) {
      body.tools = [{ type: 'function', name: toolName, description: toolText, parameters: schema, strict: false }];
      body.tool_choice = 'required';
    }
    if (!c.stream) return this.response(await client.responses.create(body, this.requestOptions()));
    const stream = await client.responses.create({ ...body, stream: true }, this.requestOptions());
    let text = '';
    for await (const event of stream) {
      this.result.last_event = event.type;
      if (event.type === 'response.output_text.delta') text += event.delta;
      if (['response.completed', 'response.incomplete', 'response.failed'].includes(event.type)) this.response(event.response);
      this.result.text = text;
      if (this.chunk()) {
        stream.controller.abort();
        break;
      }
    }
  }

  response(response) {
    this.note(response);
    const texts = response.output.filter((item) => item.type === 'message').flatMap((item) => item.content);
    this.result.text = texts.map((part) => part.text ?? '').join('');
    this.result.finish_reason = response.incomplete_details?.reason ?? response.status;
    if (response.usage) this.result.usage = response.usage;
    const calls = response.output.filter((item) => item.type === 'function_call');
    if (calls.length) this.result.tool_calls = calls.map((t) => ({ name: t.name, arguments: t.arguments }));
  }

  async messages(client) {
    const c = this.case;
    const body = {
      model: this.model,
      max_tokens: c.max_tokens || 256,
      messages: [{ role: 'user', content: c.prompt ?? '' }],
      ...c.body,
    };
    if (c.system) body.system = c.system;
    if (c.tools) {
      body.tools = [{ name: toolName, description: toolText, input_schema: schema }];
      body.tool_choice = { type: 'any' };
    }
    if (c.stream) return this.messageStream(await client.messages.create({ ...body, stream: true }, this.requestOptions()));
    const done = await client.messages.create(body, this.requestOptions());
    this.note(done);
    const texts = done.content.filter((block) => block.type === 'text').map((block) => block.text);
    Object.assign(this.result, { text: texts.join(''), finish_reason: done.stop_reason, usage: done.usage });
    const calls = done.content.filter((block) => block.type === 'tool_use');
    if (calls.length) this.result.tool_calls = calls.map((t) => ({ name: t.name, arguments: JSON.stringify(t.input) }));
  }

  async messageStream(stream) {
    for await (const event of stream) {
      this.result.last_event = event.type;
      this.messageEvent(event);
      if (this.chunk()) {
        stream.controller.abort();
        break;
      }
    }
  }

  messageEvent(event) {
    switch (event.type) {
      case 'message_start':
        this.note(event.message);
        this.result.usage = event.message.usage;
        break;
      case 'content_block_start':
        if (event.content_block.type === 'tool_use') {
          (this.result.tool_calls ??= []).push({ name: event.content_block.name, arguments: '' });
        }
        break;
      case 'content_block_delta':
        this.result.text += event.delta.text ?? '';
        // The input of a server's tool comes the same way.
        if (event.delta.partial_json && this.result.tool_calls) this.result.tool_calls.at(-1).arguments += event.delta.partial_json;
        break;
      case 'message_delta':
        this.result.finish_reason = event.delta.stop_reason ?? this.result.finish_reason;
        // Cumulative: what is present replaces what was.
        this.result.usage = { ...this.result.usage, ...event.usage };
    }
  }

  async count_tokens(client) {
    const messages = [{ role: 'user', content: this.case.prompt ?? '' }];
    this.result.usage = await client.messages.countTokens({ model: this.model, messages, ...this.case.body }, this.requestOptions());
  }

  async embeddings(client) {
    const c = this.case;
    const body = { model: this.model, input: c.inputs ?? c.prompt ?? '', ...c.body };
    if (c.encoding_format) body.encoding_format = c.encoding_format;
    if (c.dimensions) body.dimensions = c.dimensions;
    const done = await client.embeddings.create(body, this.requestOptions());
    const embeddings = done.data.map((item) => item.embedding);
    Object.assign(this.result, { model: done.model, embeddings, usage: done.usage });
  }

  async models(client) {
    const names = [];
    for await (const model of client.models.list()) names.push(model.id);
    this.result.text = names.join(',');
    this.result.model = (await client.models.retrieve(this.model)).id;
  }

  async anthropic_models(client) {
    const names = [];
    for await (const model of client.models.list({ limit: 2 })) names.push(model.id);
    this.result.text = names.join(',');
    this.result.model = (await client.models.retrieve(this.model)).id;
  }

  async stored(client) {
    const made = await client.responses.create({ model: this.model, input: this.case.prompt ?? '' });
    this.response(await client.responses.retrieve(made.id));
    for await (const event of await client.responses.retrieve(made.id, { stream: true })) {
      this.result.last_event = event.type;
      this.chunk();
    }
    let items = 0;
    for await (const _ of client.responses.inputItems.list(made.id)) items++;
    if (items !== 1) throw new Error(`the response has ${items} input items`);
    this.result.finish_reason = (await client.responses.cancel(made.id)).status;
    await client.responses.delete(made.id);
  }

  async input_tokens(client) {
    this.result.usage = await client.responses.inputTokens.count({ model: this.model, input: this.case.prompt ?? '' });
  }

  async compact(client) {
    const input = this.case.prompt ?? '';
    const made = await client.responses.create({ model: this.model, input });
    const done = await client.responses.compact({ model: this.model, previous_response_id: made.id, input });
    this.result.text = done.output.at(-1).encrypted_content;
    this.result.finish_reason = done.output.map((item) => item.type).join(',');
    this.result.usage = done.usage;
  }

  async speech(client) {
    const done = await client.audio.speech.create({ model: this.model, voice: 'alloy', input: this.case.prompt ?? '' });
    this.result.text = createHash('sha256').update(Buffer.from(await done.arrayBuffer())).digest('hex');
  }

  async transcriptions(client) {
    const file = await toFile(Buffer.from('ID3 sound'), 'a.mp3');
    const done = await client.audio.transcriptions.create({ model: this.model, file, prompt: this.case.prompt ?? '' });
    Object.assign(this.result, { text: done.text, usage: done.usage });
  }

  async images(client) {
    const done = await client.images.generate({ model: this.model, prompt: this.case.prompt ?? '', n: 2 });
    Object.assign(this.result, { text: String(done.data.length), usage: done.usage });
  }

  async run() {
    const anthropic = ['messages', 'count_tokens', 'anthropic_models'].includes(this.case.api);
    try {
      const client = anthropic
        ? new Anthropic(this.clientOptions(baseURL))
        : new OpenAI(this.clientOptions(`${baseURL}/v1`));
      await this[this.case.api](client);
      this.result.ok = true;
    } catch (error) {
      this.result.error = describe(error);
    }
    this.result.ms = this.ms();
    return this.result;
  }
}

// describe is what a program can learn from an SDK's error.
function describe(error) {
  const inner = error.error?.error ?? error.error ?? {};
  return {
    class: error.constructor.name,
    status: error.status,
    type: error.type ?? inner.type ?? undefined,
    // Some providers write a number.
    code: String(error.code ?? inner.details?.error_code ?? '') || undefined,
    param: error.param ?? undefined,
    message: inner.message ?? error.message,
    request_id: error.requestID ?? undefined,
  };
}

let input = '';
for await (const chunk of process.stdin) input += chunk;
for (const c of JSON.parse(input)) {
  process.stdout.write(`${JSON.stringify(await new Run(c).run())}\n`);
}
