"""Programs of real packages that speak to a model on this machine; ``traced_sources.py`` traces them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traced_server import Model

SYSTEM, ASK = "Look orders up.", "Where is order 17?"
LOOK = {"name": "look", "description": "Finds an order.", "parameters": {
    "type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"], "additionalProperties": False}}  # fmt: skip
CHAT_TOOLS: Any = [{"type": "function", "function": LOOK}]
OPENAI_TOOLS: Any = [{"type": "function", **LOOK, "strict": True}]
TOLD: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASK}]
FOUND = "It is in Rome."


@dataclass
class Run:
    """Where a source writes, and what it speaks to."""

    server: Model
    folder: Path

    @property
    def api(self) -> dict[str, Any]:
        return {"base_url": f"{self.server.url}/v1", "api_key": "k", "max_retries": 0}


def chats(client: Any, named: str = "m") -> None:
    """A call and what came of it, streamed and not, a choice of two, a model that is not there, an embedding."""
    for streamed in (False, True):
        more: Any = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
        got = client.chat.completions.create(model=named, messages=TOLD, tools=CHAT_TOOLS, **more)
        call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"order": 17}'}}
        if streamed:
            list(got)
        else:
            call = got.choices[0].message.model_dump(exclude_none=True)["tool_calls"][0]
        behind = [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": FOUND},
        ]
        got = client.chat.completions.create(model=named, messages=[*TOLD, *behind], tools=CHAT_TOOLS, **more)
        list(got) if streamed else got
    client.chat.completions.create(
        model=named, messages=[{"role": "user", "content": [{"type": "text", "text": ASK}]}], n=2
    )
    try:
        client.chat.completions.create(model="broken", messages=TOLD)
    except Exception as error:
        assert "no such model" in str(error), error
    client.embeddings.create(model=named, input="x")


async def chats_async(client: Any) -> None:
    """Two at once."""
    await asyncio.gather(*(client.chat.completions.create(model="m", messages=TOLD) for _ in range(2)))
    await client.close()


def responses(client: Any) -> None:
    """A call and what came of it by the responses API, streamed and not."""
    client.responses.create(model="m", instructions=SYSTEM, input=ASK)
    got = client.responses.create(model="m", instructions=SYSTEM, input=TOLD[1:], tools=OPENAI_TOOLS)
    call = got.output[0]
    behind = [*TOLD[1:], call.model_dump(), {"type": "function_call_output", "call_id": call.call_id, "output": FOUND}]
    client.responses.create(model="m", instructions=SYSTEM, input=behind, tools=OPENAI_TOOLS)
    list(client.responses.create(model="m", instructions=SYSTEM, input=ASK, stream=True))


def openai_all(run: Run, *, with_responses: bool = True) -> None:
    import openai

    chats(client := openai.OpenAI(**run.api))
    asyncio.run(chats_async(openai.AsyncOpenAI(**run.api)))
    if with_responses:
        responses(client)


def anthropic_all(run: Run) -> None:
    import anthropic

    client = anthropic.Anthropic(base_url=run.server.url, api_key="k", max_retries=0)
    tools = [{"name": "look", "description": "Finds.", "input_schema": LOOK["parameters"]}]
    common: Any = {"model": "m", "max_tokens": 99, "system": SYSTEM, "tools": tools}
    got = client.messages.create(messages=TOLD[1:], **common)
    result = [{"type": "tool_result", "tool_use_id": got.content[0].id, "content": FOUND}]
    behind = [
        *TOLD[1:],
        {"role": "assistant", "content": [got.content[0].model_dump(include={"type", "id", "name", "input"})]},
        {"role": "user", "content": result},
    ]
    client.messages.create(messages=behind, **common)
    list(client.messages.create(messages=behind, stream=True, **common))
    with client.messages.stream(messages=TOLD[1:], **common) as stream:
        stream.get_final_message()


def agents_all(run: Run, *, tracing: Callable[[Any], None] | None = None) -> None:
    """Triage hands the customer over to a desk that holds a tool, by both APIs, streamed and not."""
    import agents
    import openai

    if tracing:
        tracing(agents)

    @agents.function_tool
    def look(order: int) -> str:
        """Finds an order."""
        return FOUND

    async def play(chat: bool, streamed: bool) -> None:
        client = openai.AsyncOpenAI(**run.api)
        kind = agents.OpenAIChatCompletionsModel if chat else agents.OpenAIResponsesModel
        desk = agents.Agent(name="desk", instructions="Look orders up.", tools=[look], model=kind("m", client))
        triage = agents.Agent(name="triage", instructions="Hand over.", handoffs=[desk], model=kind("m", client))
        if streamed:
            got = agents.Runner.run_streamed(triage, ASK)
            async for _ in got.stream_events():
                pass
        else:
            await agents.Runner.run(triage, ASK)
        await client.close()

    for chat in (True, False):
        for streamed in (False, True):
            asyncio.run(play(chat, streamed))


def langchain_all(run: Run, *, also: Callable[[Any], None] | None = None) -> None:
    """A graph of two agents, the second holds a tool; then a model alone, streamed and not."""
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, MessagesState, StateGraph

    @tool
    def look(order: int) -> str:
        """Finds an order."""
        return FOUND

    llm: Any = ChatOpenAI(model="m", stream_usage=True, **run.api)
    desk = create_agent(llm, [look], system_prompt="Look orders up.", name="desk")

    def triage(state: Any) -> Any:
        said = llm.invoke([("system", "Say what it is about."), *state["messages"]])
        return {"messages": [("user", f"About: {said.content}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("triage", triage)
    graph.add_node("desk", desk)
    for pair in ((START, "triage"), ("triage", "desk"), ("desk", END)):
        graph.add_edge(*pair)
    graph.compile(name="support").invoke({"messages": [("user", ASK)]})
    if also:
        also(llm)
    else:
        llm.invoke(ASK)
        list(llm.stream(ASK))
        responding: Any = ChatOpenAI(model="m", use_responses_api=True, **run.api)
        responding.bind_tools([look]).invoke(ASK)


def pydantic_all(run: Run) -> None:
    """Triage delegates to a desk by a tool; the desk holds a tool; streamed and not."""
    import openai
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def play(kind: Any, streamed: bool) -> None:
        llm = kind("m", provider=OpenAIProvider(openai_client=openai.AsyncOpenAI(**run.api)))
        desk = Agent(llm, name="desk", system_prompt="Look orders up.")
        triage = Agent(llm, name="triage", instructions="Hand over.")

        @desk.tool_plain
        def look(order: int) -> str:
            """Finds an order."""
            return FOUND

        @triage.tool_plain
        async def ask_desk(question: str) -> str:
            """Asks the desk."""
            return (await desk.run(question)).output

        if streamed:
            async with triage.run_stream(ASK) as got:
                await got.get_output()
        else:
            await triage.run(ASK)

    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        for streamed in (False, True):
            asyncio.run(play(kind, streamed))


def smolagents_all(run: Run) -> None:
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def look(order: int) -> str:
        """Finds an order.

        Args:
            order: Its number.
        """
        return FOUND

    llm = OpenAIServerModel("m", api_base=f"{run.server.url}/v1", api_key="k")
    agent = ToolCallingAgent([look], llm, name="desk", description="Looks up.", max_steps=2)
    agent.run(ASK)


def llama_all(run: Run) -> None:
    from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    def look(order: int) -> str:
        """Finds an order."""
        return FOUND

    def speaking() -> Any:
        return OpenAILike(model="m", api_base=f"{run.server.url}/v1", api_key="k", is_chat_model=True,
                          is_function_calling_model=True, context_window=9999, max_retries=0)  # fmt: skip

    llm = speaking()
    told = [ChatMessage(role="system", content=SYSTEM), ChatMessage(role="user", content=ASK)]
    llm.chat(told)
    list(llm.stream_chat(told))

    async def play(streamed: bool) -> None:
        told: Any = {"description": "Looks.", "system_prompt": "Look orders up."}
        desk = FunctionAgent(name="desk", tools=[look], llm=speaking(), streaming=streamed, **told)
        await AgentWorkflow([desk], root_agent="desk").run(user_msg=ASK)

    asyncio.run(play(False))
    asyncio.run(play(True))


def crewai_all(run: Run) -> None:
    from crewai import LLM, Agent, Crew, Task

    llm = LLM(model="openai/m", base_url=f"{run.server.url}/v1", api_key="k")
    desk = Agent(role="Desk", goal="Look orders up.", backstory="It is quick.", llm=llm)
    writer = Agent(role="Writer", goal="Write.", backstory="It is brief.", llm=llm)
    tasks = [Task(description=ASK, expected_output="A place.", agent=agent) for agent in (desk, writer)]
    Crew(agents=[desk, writer], tasks=tasks, verbose=False, tracing=False).kickoff()


def dspy_all(run: Run) -> None:
    import dspy

    dspy.configure(lm=dspy.LM("openai/m", api_base=f"{run.server.url}/v1", api_key="k", cache=False))
    try:
        dspy.Predict("question -> answer")(question=ASK)
    except Exception as error:  # what the model says has no fields, after a second try in JSON
        assert "answer" in str(error), error
