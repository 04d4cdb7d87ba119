// Conversations through the Vercel AI SDK's default provider for OpenAI.
// Takes one argument, a JSON object: `base_url`, `model`, `prompts`, and `talks`, a list of `{key, stream, state}`.
// The state is `history` (the SDK sends references to stored items), `no_store` (it sends whole items),
// `previous_response_id` or `conversation`; the last two also with `_and_history`, for applications that send all their
// messages nevertheless. Prints the final answers to the prompts of each talk, a JSON array of arrays.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const { base_url, model, prompts, talks } = JSON.parse(process.argv[2]);
const get_weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `-4 degrees in ${city}`,
});

async function ask(request, stream) {
  if (!stream) return generateText(request);
  const result = streamText({ ...request, onError: () => {} });
  for await (const part of result.fullStream) if (part.type === "error") throw part.error;
  const { text, responseMessages, providerMetadata } = result;
  return { text: await text, responseMessages: await responseMessages, providerMetadata: await providerMetadata };
}

async function talk({ key, stream, state }) {
  const openai = createOpenAI({ baseURL: base_url, apiKey: key });
  const settings = state === "no_store" ? { store: false } : {};
  const [way] = state.split("_and_");
  if (way === "conversation") {
    const client = new OpenAI({ baseURL: base_url, apiKey: key, maxRetries: 0 });
    settings.conversation = (await client.conversations.create({})).id;
  }
  const resends = state.endsWith("history") || state === "no_store";
  const messages = [];
  const answers = [];
  for (const prompt of prompts) {
    const asked = { role: "user", content: prompt };
    const request = {
      model: openai(model),
      maxRetries: 0,
      instructions: "Answer briefly.",
      messages: resends ? [...messages, asked] : [asked],
      tools: { get_weather },
      stopWhen: stepCountIs(5),
      providerOptions: { openai: settings },
    };
    const answer = await ask(request, stream);
    messages.push(asked, ...answer.responseMessages);
    answers.push(answer.text);
    if (way === "previous_response_id") settings.previousResponseId = answer.providerMetadata.openai.responseId;
  }
  return answers;
}

const answers = [];
for (const one of talks) answers.push(await talk(one));
console.log(JSON.stringify(answers));
