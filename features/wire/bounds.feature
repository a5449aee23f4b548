@every_python
Feature: What a request can come to at most is known before it is sent, or it is said why not
  A request under a budget sets aside as many tokens as its params have bytes, and what is more than its bytes.

  Scenario: Tools, documents and other params add tokens to the bytes
    Then params come to more than their bytes, in tokens, as follows
      | params                                                                                                         | more tokens |
      | {}                                                                                                             | 50          |
      | {"tools": [], "mcp_servers": null}                                                                             | 50          |
      | {"container": "container_1"}                                                                                   | 50          |
      | {"container": {"id": "container_1", "skills": []}}                                                             | 50          |
      | {"tools": [{"name": "a"}, {"type": "custom", "name": "b"}]}                                                    | 1550        |
      | {"tools": [{"type": "bash_20250124", "name": "bash"}]}                                                         | 3550        |
      | {"tools": [{"type": "computer_toolset_20260801"}]}                                                             | 11550       |
      | {"output_config": {"effort": "low"}}                                                                           | 1550        |
      | {"output_format": {"type": "json_schema", "schema": {}}}                                                       | 1550        |
      | {"tools": [{"name": "a", "input_schema": {"properties": {"source": {"type": "string"}}}}]}                     | 1550        |
      | {"metadata": {"source": ["a", 5]}}                                                                             | 50          |
      | {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}]}]}        | 5050        |
      | {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "aaaa"}}]}]} | 5046        |
      | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "a"}}]}]}   | 50          |
      | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "1. 2.\n3? 4"}, "citations": {"enabled": true}}]}]} | 1114 |
      | {"messages": [{"role": "user", "content": [{"type": "search_result", "source": "u", "title": "t", "content": [{"type": "text", "text": "1. 2."}], "citations": {"enabled": true}}]}]} | 1050 |
      | {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "search_result", "source": "u", "content": [], "citations": {"enabled": true}}]}]}]} | 1050 |
      | {"messages": [{"role": "system", "content": [{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"type": "custom", "name": "a"}}}]}]} | 1550 |

  Scenario: The arguments of a call, and the schemas of tools and formats, are text whatever they look like
    Then params come to more than their bytes, in tokens, as follows
      | params                                                                                                                               | more tokens |
      | {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {"type": "image", "source": {"type": "base64", "data": "aaaa"}}}]}]} | 50   |
      | {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use", "input": {"file_id": "f"}}]}]}                           | 50          |
      | {"messages": [{"role": "assistant", "content": [{"type": "mcp_tool_use", "input": {"type": "tool_definition", "definition": "a"}}]}]} | 50         |
      | {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image", "source": {"type": "base64", "data": "aaaa"}}]}]}]} | 5046 |
      | {"messages": [{"role": "system", "content": [{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"type": "custom", "input_schema": {"properties": {"file_id": {}}}}}}]}]} | 1550 |
      | {"tools": [{"name": "a", "input_schema": {"properties": {"file_id": {"type": "string"}}}}]}                                          | 1550        |
      | {"tools": [{"name": "a", "input_schema": {"default": {"type": "image", "source": {"type": "base64", "data": "aaaa"}}}}]}             | 1550        |
      | {"output_config": {"format": {"type": "json_schema", "schema": {"properties": {"file_id": {"type": "string"}}}}}}                    | 1550        |

  Scenario: A document is bounded by what is known of it: A page is an image and its text
    Then documents and images come to tokens as follows
      | document                             | tokens |
      | PDF of 1 page                        | 9500   |
      | PDF of 3 pages                       | 28500  |
      | PDF of 3 pages, packed               | 28500  |
      | PDF of 1 page, each of 1000 letters  | 9500   |
      | PDF of 2 pages, each of 5000 letters | 40004  |

  Scenario: A document is bounded by what is known of it: Text that is shown in another way than by plain strings
    Then documents and images come to tokens as follows
      | document                                           | tokens |
      | PDF with hexadecimal codes of two bytes            | 13000  |
      | PDF with ligatures                                 | 97000  |
      | PDF with names of glyphs                           | 157000 |
      | PDF with a form drawn 20 times inside of another   | 645000 |
      | PDF with a comment                                 | 39008  |
      | PDF with a replacement of what is shown            | 45047  |
      | PDF with a replacement of what its structure holds | 39542  |

  Scenario: A document is bounded by what is known of it: Nothing is known of it
    Then documents and images come to tokens as follows
      | document                                     | tokens |
      | PDF of 1 page, encrypted                     | none   |
      | PDF cut short                                | none   |
      | PDF with a form that draws itself            | none   |
      | PDF with a replacement that stands elsewhere | none   |
      | PDF with letters that are texts              | none   |
      | PDF with a stream that unpacks to 20 MB      | none   |
      | PDF with many streams that unpack to 80 MB   | none   |

  Scenario: A document is bounded by what is known of it: An image has a token for each 750 pixels or each patch, and a tenth more
    Then documents and images come to tokens as follows
      | document            | tokens |
      | png of 20 by 10     | 11     |
      | png of 1000 by 1000 | 1477   |
      | jpeg of 29 by 29    | 14     |
      | png of 4000 by 4000 | 5000   |
      | png of 9000 by 9000 | 5000   |

  Scenario: A document is examined once, and little of it is remembered
    Given a limit of 3 PDFs whose bounds are remembered
    Then bounds of PDFs are remembered as follows
      | pdfs | remembered |
      | 2    | 2          |
      | 5    | 3          |

  Scenario: Some params may fill a model's whole window
    Then params come to tokens and searches as follows
      | params                                                                                                         | tokens   | searches |
      | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "data": "a"}}]}]} | 1000000  | 0        |
      | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": "aGVsbG8="}}]}]} | 1000000  | 0        |
      | {"messages": [{"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}]}                    | 1000000  | 0        |
      | {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}                                               | 10000000 | 0        |
      | {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]}                              | 10000000 | 3        |
      | {"tools": [{"name": "a"}], "messages": [{"role": "system", "content": [{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"type": "web_search_20260318", "name": "web_search", "max_uses": 2}}}]}]} | 10000000 | 2 |

  Scenario: A tool that runs at the API, and thoughts between tools, may write more than max_tokens
    Then params of at most 10 tokens of an answer may write as follows
      | params                                                                                                                     | written |
      | {"tools": [{"name": "a"}]}                                                                                                 | 10      |
      | {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}                                                           | 100     |
      | {"thinking": {"type": "adaptive"}}                                                                                         | 10      |
      | {"thinking": {"type": "enabled", "budget_tokens": 9}}                                                                      | 10      |
      | {"thinking": {"type": "enabled", "budget_tokens": 2048}}                                                                   | 2058    |
      | {"thinking": {"type": "enabled", "budget_tokens": 2048}, "tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}   | 2148    |

  Scenario: An image or a document that is not base64 is bounded, too
    Then params come to tokens and searches as follows
      | params                                                                                                                               | tokens  | searches |
      | {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "é"}}]}]} | 5200    | 0        |
      | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "é"}}]}]} | 1000000 | 0 |

  Scenario Outline: A model's window is what may be filled, or a million tokens if a beta or an unknown name allows it
    Then params come to tokens and searches as follows
      | params                                                                                            | tokens     | searches |
      | {"model": "<model>", "tools": [{"type": "web_search_1", "name": "web_search", "max_uses": 1}]}    | <window>0  | 1        |
      | {"model": "<model>", "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}}]}]} | <window> | 0 |

    Examples:
      | model             | window  |
      | claude-haiku-4-5  | 200000  |
      | claude-opus-4-5   | 200000  |
      | claude-sonnet-4-5 | 1000000 |
      | claude-opus-4-8   | 1000000 |
      | us.claude-haiku-4-5 | 1000000 |

  Scenario: A request without a bound is refused, and the error names the reason
    Then params come to tokens and searches as follows
      | params                                                             | error                                                          |
      | {"max_tokens": "many"}                                             | the params cannot be read                                      |
      | {"tools": [{"type": 5}]}                                           | its tools cannot be read                                       |
      | {"context_management": {"edits": [{"type": "compact_20260112"}]}}  | the tokens and cost of compaction have no known bound             |
      | {"container": {"id": "container_1", "skills": [{"skill_id": "pdf"}]}} | the tokens and cost of `container` have no known bound         |
      | {"container": 5}                                                   | the tokens and cost of `container` have no known bound            |
      | {"mcp_servers": [{"url": "u"}]}                                    | the tokens and cost of `mcp_servers` have no known bound          |
      | {"tools": [{"type": "of_tomorrow_1", "name": "a"}]}                | the tokens and cost of the tool of_tomorrow_1 have no known bound |
      | {"tools": [{"type": "web_search_20250305", "name": "web_search"}]} | may search without limit; set its `max_uses`            |
      | {"messages": [{"role": "system", "content": [{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"type": "web_search_20260318", "name": "web_search"}}}]}]} | may search without limit; set its `max_uses` |
      | {"messages": [{"role": "system", "content": [{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"type": "code_execution_20260521", "name": "run"}}}]}]} | the tokens and cost of the tool code_execution_20260521 have no known bound |
      | {"messages": [{"role": "system", "content": [{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": "of tomorrow"}}]}]} | its tools cannot be read |

  Scenario: The bound includes cache writes and the place where a request runs
    Then params may be written to a cache, and be charged as run in one country, as follows
      | params                                                | cache   | us_only |
      | {}                                                    | nothing | yes     |
      | {"inference_geo": "us"}                               | nothing | yes     |
      | {"inference_geo": "US"}                               | nothing | yes     |
      | {"inference_geo": "of tomorrow"}                      | nothing | yes     |
      | {"inference_geo": "global"}                           | nothing | no      |
      | {"cache_control": {"type": "ephemeral"}}              | 5m      | yes     |
      | {"cache_control": {"type": "ephemeral", "ttl": "5m"}} | 5m      | yes     |
      | {"cache_control": {"type": "ephemeral", "ttl": "1h"}} | 1h      | yes     |
      | {"cache_control": {"type": "ephemeral", "ttl": "1d"}} | 1h      | yes     |

  Scenario: A model and its longest answer are read where they can be
    Then the model and the longest answer are read as follows
      | params                 | model | longest |
      | {"max_tokens": 7}      | m     | 7       |
      | {"max_tokens": -7}     | m     | 0       |
      | {"max_tokens": "many"} |       | 0       |

  Scenario: The longest prefix with a mark counts as cached
    Then of system, tools and three blocks of a message so many are marked, as follows
      | params                                                                                             | blocks | hour |
      | {}                                                                                                 | 0      | no   |
      | {"cache_control": null}                                                                            | 0      | no   |
      | {"cache_control": {"type": "ephemeral"}}                                                           | 3      | no   |
      | {"system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}   | 1      | yes  |
      | {"system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}, "of tomorrow"]} | 1      | no   |
      | {"system": 5, "tools": [{"name": "a"}, {"name": "b", "cache_control": {"type": "ephemeral"}}]}     | 2      | no   |
