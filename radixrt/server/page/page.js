// The page of the server: the native routes, read as any client would. Nothing here is loaded from another host, and
// what a model writes only ever becomes text nodes.

const $ = (id) => document.getElementById(id);
let key = sessionStorage.getItem("radixrt-key") ?? "";
let turns = []; // the conversation so far: {role, content}
let running = null; // AbortController of the request under way

function headers() {
  return key ? { "Content-Type": "application/json", Authorization: `Bearer ${key}` } : { "Content-Type": "application/json" };
}

async function ask(path, body, signal) {
  const init = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  // Relative to the page: a proxy may have put it under a prefix.
  const response = await fetch(path.slice(1), { ...init, headers: headers(), signal });
  if (!response.ok) {
    const error = (await response.json().catch(() => ({}))).error;
    if (response.status === 401) $("key-box").open = true;
    throw Object.assign(new Error(error?.message ?? `HTTP ${response.status}`), { status: response.status });
  }
  return response;
}

const json = async (path, body, signal) => (await ask(path, body, signal)).json();

function span(kind, text, title) {
  const element = document.createElement("span");
  element.className = kind;
  element.textContent = text;
  if (title) element.title = title;
  return element;
}

function say(where, text, wrong = false) {
  where.textContent = text;
  where.classList.toggle("wrong", wrong);
}

// --- the prompt, token by token: exact bytes come as base64, and a character may be spread over several tokens

function texts(pieces) {
  const decoder = new TextDecoder();
  return pieces.map((piece, i) => {
    const bytes = Uint8Array.from(atob(piece), (c) => c.charCodeAt(0));
    return decoder.decode(bytes, { stream: i < pieces.length - 1 });
  });
}

// --- writing

async function* deltas(body, signal) {
  const response = await ask("/generate", { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    const events = buffer.split("\n\n");
    buffer = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
      const data = JSON.parse(event.slice(6));
      if (data.error) throw new Error(data.error.message);
      yield data;
    }
  }
}

function request() {
  const chat = document.querySelector('input[name="mode"]:checked').value === "chat";
  const content = $("prompt").value;
  const system = $("system").value.trim() ? [{ role: "system", content: $("system").value }] : [];
  const messages = [...system, ...turns, { role: "user", content }];
  const schema = $("schema").value.trim();
  return {
    chat,
    content,
    body: {
      prompt: chat ? { type: "ChatPrompt", messages } : content,
      sampling: { max_tokens: Number($("max-tokens").value), temperature: Number($("temperature").value) },
      ...(schema ? { constraint: { kind: "json_schema", value: schema } } : {}),
    },
  };
}

function append(turn, delta, from) {
  // `forced` holds [start, end) in characters of the sample's text; JavaScript counts UTF-16 units, so go by code point.
  const characters = Array.from(delta.text);
  let at = 0;
  for (const [start, end] of (delta.forced ?? []).map(([a, b]) => [a - from, b - from])) {
    if (start > at) turn.append(span("sampled", characters.slice(at, start).join("")));
    turn.append(span("forced", characters.slice(Math.max(start, at), end).join(""), "the schema left no other token"));
    at = end;
  }
  if (at < characters.length) turn.append(span("sampled", characters.slice(at).join("")));
  return characters.length;
}

async function send(event) {
  event.preventDefault();
  if (running) return;
  running = new AbortController();
  $("go").disabled = true;
  $("stop").disabled = false;
  const { chat, content, body } = request();
  const prompt = document.createElement("div");
  const turn = document.createElement("div");
  prompt.className = turn.className = "turn";
  $("log").replaceChildren(prompt, turn);
  say($("figures"), "…");
  let text = "";
  let seen = 0;
  try {
    const pieces = texts((await json("/encode", { prompt: body.prompt }, running.signal)).pieces);
    prompt.append(span("computed", pieces.join("")));
    for await (const delta of deltas(body, running.signal)) {
      text += delta.text;
      seen += append(turn, delta, seen);
      $("log").scrollTop = $("log").scrollHeight;
      if (delta.usage) {
        const usage = delta.usage;
        prompt.replaceChildren(
          span("cached", pieces.slice(0, usage.cached_tokens).join(""), "computed before, read from the tree"),
          span("computed", pieces.slice(usage.cached_tokens).join(""), "computed for this request"),
        );
        const seconds = Math.max(usage.total_s - usage.ttft_s, 1e-3);
        say(
          $("figures"),
          `${usage.cached_tokens} of ${usage.prompt_tokens} prompt tokens cached · ` +
            `${usage.completion_tokens} written · first after ${(1000 * usage.ttft_s).toFixed(0)} ms · ` +
            `${(usage.completion_tokens / seconds).toFixed(0)} tokens/s`,
        );
      }
    }
    if (chat) {
      turns.push({ role: "user", content }, { role: "assistant", content: text });
      $("prompt").value = "";
    }
  } catch (error) {
    say($("figures"), error.name === "AbortError" ? "stopped" : error.message, error.name !== "AbortError");
  } finally {
    running = null;
    $("go").disabled = false;
    $("stop").disabled = true;
    $("prompt").focus();
    refresh();
  }
}

// --- the schema: is it JSON, and would the server enforce it?

let asked = 0;
async function checkSchema() {
  const text = $("schema").value.trim();
  const mine = ++asked;
  if (!text) return say($("schema-state"), "");
  try {
    JSON.parse(text);
  } catch (error) {
    return say($("schema-state"), `not JSON: ${error.message}`, true);
  }
  say($("schema-state"), "asking the server …");
  await new Promise((resolve) => setTimeout(resolve, 400));
  if (mine !== asked) return; // typed on meanwhile
  try {
    // With a salt of its own: a question about a schema is no part of the tree that is shown.
    const constraint = { kind: "json_schema", value: text };
    await json("/generate", { prompt: "x", sampling: { max_tokens: 1 }, constraint, cache_salt: "page: schema" });
    if (mine === asked) say($("schema-state"), "enforced, every word of it");
  } catch (error) {
    if (mine === asked) say($("schema-state"), error.message, true);
  }
}

// --- looking

function showTree(nodes) {
  const items = nodes.slice(0, 200).map((node) => {
    const item = document.createElement("li");
    item.style.paddingLeft = `${node.depth}rem`;
    const used = node.locks ? `, ${node.locks} running` : "";
    item.append(span("count", `${count(node.tokens, "token")}, ${count(node.hits, "hit")}${used}  `));
    const shown = (node.text || "(root)").replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "\u00a0");
    item.append(span(node.locks ? "sampled" : "cached", shown));
    return item;
  });
  $("tree").replaceChildren(...items);
  say($("tree-note"), nodes.length > 200 ? `The first 200 of ${nodes.length} nodes.` : "What the server has computed and kept.");
}

const count = (number, thing) => `${number} ${thing}${number === 1 ? "" : "s"}`;

const FIGURES = [
  ["requests running", (m) => m.radixrt_requests_running],
  ["waiting", (m) => m.radixrt_requests_waiting],
  ["prompt tokens cached", (m) => percent(m.radixrt_prefix_hits_tokens_total, m.radixrt_prefix_queries_tokens_total)],
  ["tokens written", (m) => m.radixrt_generation_tokens_total],
  ["KV tokens held", (m) => `${m.radixrt_kv_used_tokens} of ${m.radixrt_kv_tokens}`],
  ["KV tokens cached", (m) => m.radixrt_kv_cached_tokens],
  ["first token, mean", (m) => mean(m, "radixrt_time_to_first_token_seconds")],
  ["between tokens, mean", (m) => mean(m, "radixrt_inter_token_seconds")],
];
const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");
const mean = (m, name) => (m[`${name}_count`] ? `${((1000 * m[`${name}_sum`]) / m[`${name}_count`]).toFixed(1)} ms` : "–");

function showMetrics(page) {
  const values = Object.fromEntries(
    page.split("\n").filter((line) => /^radixrt_\w+ /.test(line)).map((line) => line.split(" ")).map(([k, v]) => [k, Number(v)]),
  );
  $("metrics").replaceChildren(
    ...FIGURES.flatMap(([name, of]) => {
      const term = document.createElement("dt");
      const value = document.createElement("dd");
      term.textContent = name;
      value.textContent = of(values) ?? "–";
      return [term, value];
    }),
  );
}

async function refresh() {
  try {
    const info = await json("/server_info");
    say($("model"), `${info.served_model_name}: ${info.model.dtype}, ${info.model.device}, context ${info.model.context_length}`);
    showTree((await json("/cache")).nodes);
  } catch (error) {
    say($("model"), error.message, true);
    return;
  }
  try {
    showMetrics(await (await ask("/metrics")).text());
  } catch (error) {
    say($("metrics"), error.message); // with keys, metrics may be an operator's
  }
}

function mode() {
  const chat = document.querySelector('input[name="mode"]:checked').value === "chat";
  document.querySelectorAll(".chat-only").forEach((element) => (element.hidden = !chat));
  $("clear").hidden = !chat;
}

$("key").value = key;
$("key").addEventListener("change", () => {
  key = $("key").value.trim();
  sessionStorage.setItem("radixrt-key", key);
  refresh();
});
$("form").addEventListener("submit", send);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => {
  turns = [];
  $("log").replaceChildren();
  say($("figures"), "");
});
$("schema").addEventListener("input", checkSchema);
document.querySelectorAll('input[name="mode"]').forEach((radio) => radio.addEventListener("change", mode));
mode();
refresh();
setInterval(() => document.hidden || running || refresh(), 3000);
