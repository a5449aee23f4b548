"""LangChain: 200 prompts of a chain in one batch."""

from langchain_core.prompts import ChatPromptTemplate

import claude_batch as cb

llm = cb.ClaudeBatchProvider().create_chat_model("claude-haiku-4-5")
chain = ChatPromptTemplate.from_template("Explain knot number {number}.") | llm

for answer in chain.batch([{"number": number} for number in range(200)]):
    print(answer.text)
