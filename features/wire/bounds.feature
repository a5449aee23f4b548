@every_python
Feature: What a request can come to at most is known before it is sent, or it is said why not
  A request under a budget sets aside as many tokens as its params have bytes, and what is more than its bytes.

  Scenario Outline: What adds to the bytes: <params>
    Then params with <params> come to their bytes and <more> tokens

    Examples:
      | params | more |
      | {} | 50 |
      | {"tools": [], "mcp_servers": null} | 50 |
      | {"tools": [{"name": "a"}, {"type": "custom", "name": "b"}]} | 1550 |
      | {"tools": [{"type": "bash_20250124", "name": "bash"}]} | 3550 |
      | {"output_config": {"effort": "low"}} | 1550 |
      | {"tools": [{"name": "a", "input_schema": {"properties": {"source": {"type": "string"}}}}]} | 1550 |
      | {"metadata": {"source": ["a", 5]}} | 50 |
      | {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}]}]} | 5050 |
      | {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "aaaa"}}]}]} | 5046 |
      | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "a"}}]}]} | 50 |

  Scenario Outline: A document is bounded by what is known of it: <document>
    Then a <document> comes to <tokens> tokens

    Examples: A page is an image and its text
      | document                                              | tokens  |
      | PDF of 1 page                                         | 9500    |
      | PDF of 3 pages                                        | 28500   |
      | PDF of 3 pages, packed                                | 28500   |
      | PDF of 1 page, each of 1000 letters                   | 9500    |
      | PDF of 2 pages, each of 5000 letters                  | 40004   |

    Examples: Text that is shown in another way than by plain strings
      | document                                              | tokens  |
      | PDF with hexadecimal codes of two bytes               | 13000   |
      | PDF with ligatures                                    | 97000   |
      | PDF with names of glyphs                              | 157000  |
      | PDF with a form drawn 20 times inside of another      | 645000  |
      | PDF with a comment                                    | 39008   |
      | PDF with a replacement of what is shown               | 45047   |
      | PDF with a replacement of what its structure holds    | 39542   |

    Examples: Nothing is known of it
      | document                                              | tokens      |
      | PDF of 1 page, encrypted                              | a window of |
      | PDF cut short                                         | a window of |
      | PDF with a form that draws itself                     | a window of |
      | PDF with a replacement that stands elsewhere          | a window of |
      | PDF with letters that are texts                       | a window of |
      | PDF with a stream that unpacks to 20 MB               | a window of |
      | PDF with many streams that unpack to 80 MB            | a window of |

    Examples: An image has a token for each 750 pixels or each patch, and a tenth more
      | document                                              | tokens  |
      | png of 20 by 10                                       | 11      |
      | png of 1000 by 1000                                   | 1477    |
      | jpeg of 29 by 29                                      | 14      |
      | png of 4000 by 4000                                   | 5000    |
      | png of 9000 by 9000                                   | 5000    |

  Scenario: What was looked at is not looked at again, and little of it is remembered
    Then a budget remembers the bounds of 3 PDFs at most

  Scenario Outline: What may fill a model's whole window: <params>
    Then params with <params> come to <tokens> tokens and <searches> searches

    Examples:
      | params | tokens | searches |
      | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "data": "a"}}]}]} | 1000000 | 0 |
      | {"messages": [{"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}]} | 1000000 | 0 |
      | {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]} | 10000000 | 0 |
      | {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]} | 10000000 | 3 |

  Scenario Outline: What has no bound is told with its name: <params>
    Then params with <params> have no bound: <words>

    Examples:
      | params | words |
      | {"max_tokens": "many"} | the params cannot be read |
      | {"tools": [{"type": 5}]} | its tools cannot be read |
      | {"mcp_servers": [{"url": "u"}]} | the tokens and cost of `mcp_servers` have no known bound |
      | {"tools": [{"type": "of_tomorrow_1", "name": "a"}]} | the tokens and cost of the tool of_tomorrow_1 have no known bound |
      | {"tools": [{"type": "web_search_20250305", "name": "web_search"}]} | may search without limit; set its `max_uses` |

  Scenario Outline: What is written to the cache, and where it runs, is part of the bound: <params>
    Then params with <params> have a cache of <cache>, and may be charged as run in one country: <us>

    Examples:
      | params | cache | us |
      | {} | nothing | yes |
      | {"inference_geo": "us"} | nothing | yes |
      | {"inference_geo": "global"} | nothing | no |
      | {"cache_control": {"type": "ephemeral"}} | 5m | yes |
      | {"cache_control": {"type": "ephemeral", "ttl": "1h"}} | 1h | yes |

  Scenario: A model and its longest answer are read where they can be
    Then params with {"max_tokens": 7} name "m" and 7 tokens
    And params with {"max_tokens": -7} name "m" and 0 tokens
    And params with {"max_tokens": "many"} name "" and 0 tokens

  Scenario Outline: What is marked for the cache is the longest prefix with a mark: <params>
    Then params with <params> have <blocks> of 3 blocks marked, for an hour: <hour>

    Examples:
      | params | blocks | hour |
      | {} | 0 | no |
      | {"cache_control": null} | 0 | no |
      | {"cache_control": {"type": "ephemeral"}} | 3 | no |
      | {"system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]} | 1 | yes |
      | {"system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}, "of tomorrow"]} | 1 | no |
      | {"system": 5, "tools": [{"name": "a"}, {"name": "b", "cache_control": {"type": "ephemeral"}}]} | 2 | no |
