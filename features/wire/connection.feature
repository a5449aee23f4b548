Feature: The connection speaks as the official SDK does
  The SDK is not imported for a call, because that takes a second of CPU. What it would send is sent
  nevertheless: the same credential, the same API version, the same headers of the environment, over
  the same proxy.

  Background:
    Given a server that records the head of each call

  Scenario Outline: <name>: the same credential and headers as the SDK's
    Given the environment of the connection:
      | variable   | value   |
      | <variable> | <value> |
      | <second>   | <other> |
    When the connection and the SDK each send a call
    Then both calls have the same path and these same headers:
      | header            |
      | accept            |
      | authorization     |
      | anthropic-version |
      | content-type      |
      | x-team            |
      | x-api-key         |

    Examples:
      | name                  | variable             | value     | second                   | other                      |
      | a key                 | ANTHROPIC_API_KEY    | sk-of-key |                          |                            |
      | a token               | ANTHROPIC_AUTH_TOKEN | of-token  |                          |                            |
      | a key before a token  | ANTHROPIC_API_KEY    | sk-of-key | ANTHROPIC_AUTH_TOKEN     | of-token                   |
      | an empty key, a token | ANTHROPIC_API_KEY    |           | ANTHROPIC_AUTH_TOKEN     | of-token                   |
      | headers of one's own  | ANTHROPIC_API_KEY    | sk-of-key | ANTHROPIC_CUSTOM_HEADERS | X-Team: red\nno colon here |
      | a header that names the key | ANTHROPIC_API_KEY | sk-of-key | ANTHROPIC_CUSTOM_HEADERS | x-api-key: sk-other |

  Scenario: A key that is given and empty is not replaced by another account's
    Given the environment of the connection:
      | variable          | value     |
      | ANTHROPIC_API_KEY | sk-of-key |
    Then connections have credentials as follows
      | key | credential |
      | ""  | ""         |
      | "a" | "a"        |
      |     | sk-of-key  |

  Scenario: A base URL with a path keeps it
    Given the environment of the connection:
      | variable           | value                           |
      | ANTHROPIC_API_KEY  | sk-of-key                       |
      | ANTHROPIC_BASE_URL | http://THERE/gateway/anthropic  |
    When the connection and the SDK each send a call
    Then both calls have the same path and these same headers:
      | header        |
      | authorization |

  Scenario: A base URL is written as the SDK writes it, because ledgers hold it
    Then base URLs are written as follows
      | given                         | by us                         | by the SDK                    |
      | https://api.anthropic.com     | https://api.anthropic.com     | https://api.anthropic.com     |
      | https://api.anthropic.com/    | https://api.anthropic.com/    | https://api.anthropic.com/    |
      | http://127.0.0.1:8799         | http://127.0.0.1:8799         | http://127.0.0.1:8799         |
      | https://gateway.invalid/a     | https://gateway.invalid/a/    | https://gateway.invalid/a/    |
      | https://gateway.invalid/a//   | https://gateway.invalid/a//   | https://gateway.invalid/a//   |
      | https://GATEWAY.invalid:443/a | https://gateway.invalid/a/    | https://gateway.invalid/a/    |

  Scenario: The token of a profile is the SDK's to fetch
    Given the environment of the connection:
      | variable             | value |
      | ANTHROPIC_CONFIG_DIR | HERE  |
      | ANTHROPIC_PROFILE    | team  |
    And the profile "team" with the token "of-profile" and the workspace "wrkspc_1"
    When the connection and the SDK each send a call
    Then both calls have the same path and these same headers:
      | header                 |
      | authorization          |
      | anthropic-beta         |
      | anthropic-workspace-id |
      | anthropic-version      |

  Scenario: A proxy of the environment carries the call, unless the host is excepted
    Given the environment of the connection:
      | variable          | value          |
      | ANTHROPIC_API_KEY | sk-of-key      |
      | http_proxy        | http://THERE   |
    Then the targets of calls are as follows
      | host                | no proxy      | target                                 |
      | api.example.invalid |               | http://api.example.invalid/v1/messages |
      | api.example.invalid | other.invalid | http://api.example.invalid/v1/messages |
      | THERE               | 127.0.0.1     | /v1/messages                           |

  Scenario: What drives a run does not import the SDK
    When Python imports "claude_batch.providers.batch"
    Then the module "anthropic" is not imported
