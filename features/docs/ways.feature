Feature: Two clicks lead from the site's start page to each topic
  The topics are the headings of a README that had everything on one page. The first click is the link in a row
  of the start page, the second one a link or a heading of the page that it opens.

  Scenario: Each topic has a place that the start page names
    Then the site's start page leads to topics as follows
      | topic                                    | start page says              | place                                                | section says             | clicks |
      | Two commands                             | Start with the               | tutorial.md                                          | claude-batch run         | 1      |
      | With a real key                          | Run prompts from the command | how-to/command-line.md#run-wait-and-write            | ANTHROPIC_API_KEY        | 2      |
      | From Python                              | Call actors from Python      | how-to/python.md                                     | load_actor               | 1      |
      | Answers in a shape                       | structured output            | how-to/structured-output.md                          | output_format            | 1      |
      | Documents                                | Send PDFs                    | how-to/documents.md                                  | documents=               | 1      |
      | Answers that cite                        | passages that support        | how-to/documents.md#get-citations                    | citations                | 2      |
      | Tools, and other turns                   | Use tools and conversations  | how-to/tools.md#what-happens-in-a-conversation       | turn                     | 2      |
      | Watching and changing: status, events    | status, events, logs         | how-to/observability.md#status-and-progress          | claude-batch status      | 2      |
      | Watching and changing: cancel            | stop and continue            | how-to/command-line.md#cancel                        | claude-batch cancel      | 2      |
      | Watching and changing: middleware        | Change requests              | how-to/middleware.md                                 | before_request           | 1      |
      | What can be asked for                    | what a request can contain   | reference/python.md#what-a-request-can-contain       | options                  | 2      |
      | A look ahead                             | preflight                    | how-to/caching.md#check-a-run-before-it-is-sent-preflight | preflight           | 2      |
      | The prompt cache                         | Use the prompt cache         | how-to/caching.md#mark-shared-beginnings-for-the-prompt-cache | cache           | 2      |
      | Answers reused                           | reuse answers                | how-to/caching.md#reuse-answers                      | reuse                    | 2      |
      | Code that already uses Anthropic's SDK   | existing code, unchanged     | how-to/sdk-clients.md                                | cb.client                | 1      |
      | The actor's YAML                         | every key with its default   | reference/actor-yaml.md                              | batch_processing         | 1      |
      | Deadlines                                | Meet a deadline              | how-to/deadlines.md#set-a-deadline                   | deadline                 | 2      |
      | Answers at once                          | or answer live               | how-to/deadlines.md#answer-without-batches           | mode                     | 2      |
      | Settings                                 | every setting as flag        | reference/settings.md                                | poll_interval            | 1      |
      | Prices                                   | how a cost is computed       | reference/prices.md#how-a-cost-is-computed           | price                    | 2      |
      | Budgets                                  | Limit and predict costs      | how-to/budgets.md#set-a-budget                       | budget                   | 2      |
      | Own prices                               | a file of your own prices    | reference/prices.md#your-own-prices                  | prices                   | 2      |
      | Where data lies                          | Back up, restore and prune   | how-to/ledger.md#where-the-data-is                   | ledger.db                | 2      |
      | Where data lies: what is removed         | removal of old runs          | how-to/ledger.md#prune                               | claude-batch ledger prune | 2     |
      | When things fail: requests               | failures, and what           | how-to/retries.md#retry-what-failed                  | claude-batch retry       | 2      |
      | When things fail: the account            | refused keys, no credit      | how-to/unknown-sendings.md#sending-is-halted         | claude-batch resume      | 2      |
      | When things fail: an answer is lost      | lost responses               | how-to/unknown-sendings.md#a-sending-whose-response-was-lost | claude-batch unknown | 2  |
      | When things fail: a message              | find the words               | how-to/troubleshooting.md#the-run-waits              | parking                  | 2      |
      | What was tried, and what was not         | against the sandbox alone    | reference/versions.md#what-was-tried-and-what-was-not | sandbox                 | 2      |
      | Versions                                 | what a new version may change | reference/versions.md#what-the-version-number-covers | Semantic Versioning     | 2      |
      | Further: how it works                    | how a request travels        | explanation/architecture.md                          | ledger                   | 1      |
      | Further: what is promised                | what is promised             | explanation/guarantees.md#what-is-promised           | request                  | 2      |
