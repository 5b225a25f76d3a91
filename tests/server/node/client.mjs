// The real openai package for Node against a server: each step prints one JSON line {step, ...what it found}.
// Usage: node client.mjs BASE_URL; the package is looked for beside this file's copy.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Hi" }];
const say = (step, found) => console.log(JSON.stringify({ step, ...found }));
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};

const answer = await client.chat.completions.create({ model: "fake", messages });
say("chat", { text: answer.choices[0].message.content, finish: answer.choices[0].finish_reason, usage: answer.usage });

const stream = await client.chat.completions.create({
  model: "fake", messages, stream: true, stream_options: { include_usage: true },
});
let text = "", usage = null;
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
say("stream", { text, usage });

const helper = client.chat.completions.stream({ model: "fake", messages });
let deltas = 0;
helper.on("content", () => { deltas += 1; });
const final = await helper.finalChatCompletion();
say("helper", { text: final.choices[0].message.content, deltas, finish: final.choices[0].finish_reason });

const schema = { type: "object", properties: { a: { type: "integer" } }, required: ["a"], additionalProperties: false };
const parsed = await client.chat.completions.parse({
  model: "fake", messages, response_format: { type: "json_schema", json_schema: { name: "thing", strict: true, schema } },
});
say("parse", { text: parsed.choices[0].message.content });

const completion = await client.completions.create({ model: "fake", prompt: ["a", "b"], max_tokens: 60, echo: true });
say("completions", { texts: completion.choices.map((choice) => choice.text) });

const models = [];
for await (const model of client.models.list()) models.push(model.id);
say("models", { models });

const response = await client.responses.create({ model: "fake", input: "Hi" });
const events = [];
for await (const event of await client.responses.create({ model: "fake", input: "Hi", stream: true })) events.push(event.type);
say("responses", { text: response.output_text, first: events[0], last: events[events.length - 1] });

for (const [name, body] of [
  ["n", { n: 0 }],
  ["model", { model: "gpt-4" }],
  ["unknown", { nonsense: 1 }],
]) {
  try {
    await client.chat.completions.create({ model: "fake", messages, ...body });
    say(`error ${name}`, { type: "none" });
  } catch (error) {
    say(`error ${name}`, { type: error.constructor.name, status: error.status, param: error.param, code: error.code });
  }
}

try {
  const dying = await client.chat.completions.create({
    model: "fake", messages: [{ role: "user", content: "DEADEND" }], stream: true,
  });
  for await (const _ of dying) { /* read to the end */ }
  say("error in a stream", { type: "none" });
} catch (error) {
  say("error in a stream", { type: error.constructor.name, message: error.message });
}

const left = await client.chat.completions.create({
  model: "fake", messages: [{ role: "user", content: "SLOW" }], stream: true,
});
for await (const _ of left) break;
left.controller.abort();
say("left", {});

// USETOOL: the backend calls the function until a result stands in the history.
const runner = client.chat.completions.runTools({
  model: "fake",
  messages: [{ role: "user", content: "USETOOL" }],
  tools: [{ ...weather, function: { ...weather.function, parse: JSON.parse, function: ({ city }) => `12 °C in ${city}` } }],
});
const said = await runner.finalContent();
say("tools", { text: said, roles: runner.messages.map((message) => message.role), results: runner.messages.filter((m) => m.role === "tool").map((m) => m.content) });
