// Plays a program of Vercel's AI SDK against the model at process.argv[2], and writes its spans as OTLP to process.argv[3].
import { writeFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import { context } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { JsonTraceSerializer } from "@opentelemetry/otlp-transformer";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [, , url, file] = process.argv;
context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
const spans = new InMemorySpanExporter();
const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] });
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "k" });
const look = tool({
  description: "Finds an order.",
  inputSchema: z.object({ order: z.number() }),
  execute: async () => "It is in Rome.",
});

for (const model of [openai.chat("m"), openai.responses("m")]) {
  const asked = {
    model,
    system: "Look orders up.",
    prompt: "Where is order 17?",
    tools: { look },
    stopWhen: stepCountIs(3),
    maxRetries: 0,
    experimental_telemetry: { isEnabled: true, functionId: "desk", tracer: provider.getTracer("ai") },
  };
  await generateText(asked);
  await streamText(asked).consumeStream();
}
try {
  await generateText({
    model: openai.chat("broken"),
    prompt: "Where?",
    maxRetries: 0,
    experimental_telemetry: { isEnabled: true, tracer: provider.getTracer("ai") },
  });
} catch (error) {
  if (!`${error}`.includes("no such model")) throw error;
}
writeFileSync(file, new TextDecoder().decode(JsonTraceSerializer.serializeRequest(spans.getFinishedSpans())) + "\n");
