// Conversations through the Agents SDK for JavaScript, as its defaults send them.
// Takes one argument, a JSON object: `base_url`, `model`, `prompts`, and `talks`, a list of `{key, stream, state}`.
// The state is `history` (the SDK resends everything), `compacted` (it compacts what it resends every few turns, by
// `POST /v1/responses/compact`), `previous_response_id` or `conversation`.
// Prints the final answers to the prompts of each talk, a JSON array of arrays.
import {
  Agent,
  MemorySession,
  OpenAIResponsesCompactionSession,
  OpenAIResponsesModel,
  run,
  setTracingDisabled,
  tool,
} from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";

const { base_url, model, prompts, talks } = JSON.parse(process.argv[2]);
setTracingDisabled(true);
const get_weather = tool({
  name: "get_weather",
  description: "The weather in a city.",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `-4 degrees in ${city}`,
});

async function talk({ key, stream, state }) {
  const client = new OpenAI({ baseURL: base_url, apiKey: key, maxRetries: 0 });
  const clerk = new Agent({
    name: "Clerk",
    instructions: "Answer briefly.",
    model: new OpenAIResponsesModel(client, model),
    tools: [get_weather],
  });
  const options = state === "conversation" ? { conversationId: (await client.conversations.create({})).id } : {};
  if (state === "compacted") {
    options.session = new OpenAIResponsesCompactionSession({
      client,
      underlyingSession: new MemorySession(),
      shouldTriggerCompaction: ({ compactionCandidateItems }) => compactionCandidateItems.length >= 3,
    });
    options.session.model = model; // the session takes OpenAI's names only
  }
  let history = [];
  const answers = [];
  for (const prompt of prompts) {
    const input = state === "history" ? [...history, { role: "user", content: prompt }] : prompt;
    const result = stream ? await run(clerk, input, { ...options, stream: true }) : await run(clerk, input, options);
    if (stream) {
      for await (const event of result) void event;
      await result.completed;
    }
    answers.push(result.finalOutput);
    history = result.history;
    if (state === "previous_response_id") options.previousResponseId = result.lastResponseId;
  }
  if (state === "compacted" && !(await options.session.getItems()).some((item) => item.type === "compaction")) {
    throw new Error("nothing was compacted");
  }
  return answers;
}

const answers = [];
for (const one of talks) answers.push(await talk(one));
console.log(JSON.stringify(answers));
