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

  Scenario: A base URL has one spelling, because ledgers hold it
    Then base URLs are written as follows
      | given                         | by us                         | by the SDK                    |
      | https://api.anthropic.com     | https://api.anthropic.com     | https://api.anthropic.com     |
      | https://api.anthropic.com/    | https://api.anthropic.com     | https://api.anthropic.com/    |
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

  Scenario: A proxy of the environment carries the call, unless the host is this machine or excepted
    Given the environment of the connection:
      | variable          | value          |
      | ANTHROPIC_API_KEY | sk-of-key      |
      | http_proxy        | http://THERE   |
    Then the targets of calls are as follows
      | host                | no proxy      | target                                 |
      | api.example.invalid |               | http://api.example.invalid/v1/messages |
      | api.example.invalid | other.invalid | http://api.example.invalid/v1/messages |
      | THERE               | 127.0.0.1     | /v1/messages                           |
      | THERE               |               | /v1/messages                           |

  Scenario: A setting of the environment that cannot be used is named, and its value is not
    Then calls with a setting of the environment end as follows
      | variable                 | value                        | says |
      | ALL_PROXY                | socks5://user:word@proxy:1   | ActorConfigurationError: ALL_PROXY names a SOCKS proxy, which needs the package socksio… |
      | HTTPS_PROXY              | foo://user:word@proxy        | ActorConfigurationError: HTTPS_PROXY cannot be used: a proxy is named by a URL such as http://HOST:3128… |
      | HTTPS_PROXY              | http://host:port             | ActorConfigurationError: HTTPS_PROXY cannot be used… |
      | https_proxy              | http://host:99999            | ActorConfigurationError: https_proxy cannot be used… |
      | HTTPS_PROXY              | ://proxy                     | ActorConfigurationError: HTTPS_PROXY cannot be used… |
      | SSL_CERT_FILE            | /nonexistent                 | ActorConfigurationError: the certificates of SSL_CERT_FILE cannot be read (No such file or directory)… |
      | SSL_CERT_FILE            | /etc/passwd                  | ActorConfigurationError: the certificates of SSL_CERT_FILE cannot be read… |
      | ANTHROPIC_CUSTOM_HEADERS | X-Team: red\nX-Name: Jörg    | ActorConfigurationError: line 2 of ANTHROPIC_CUSTOM_HEADERS cannot be sent as a header… |
      | ANTHROPIC_CUSTOM_HEADERS | X Name: Ali                  | ActorConfigurationError: line 1 of ANTHROPIC_CUSTOM_HEADERS cannot be sent as a header… |
      | ANTHROPIC_BASE_URL       | https://api.invalid:99999    | ActorConfigurationError: the base URL cannot be used: Invalid port: 99999; correct --base-url, or ANTHROPIC_BASE_URL… |
      | ANTHROPIC_BASE_URL       | https://user:wo/rd@proxy     | ActorConfigurationError: the base URL cannot be used: it is not a URL… |
      | HTTPS_PROXY              | http://user:word@127.0.0.1:9 | ConnectError: All connection attempts failed (through the proxy 127.0.0.1:9)… |
      | HTTPS_PROXY              | user:word@127.0.0.1:9        | ConnectError: All connection attempts failed (through the proxy 127.0.0.1:9)… |

  Scenario: The API's clock and the workspace are those of its last answer, also of an error
    Then the API's clock and the workspace are noted as follows
      | answer                     | hours ahead | workspace |
      | success of the API         | 2           | wrkspc_1  |
      | 404 of the API             | 2           | wrkspc_1  |
      | 404 of a proxy             | 0           |           |

  Scenario: An API that does not answer for a minute is reported, and a server gets no calls after ten
    Then calls of the API that end so are reported as follows
      | ends                                | log                                                                                                    | not ready                                     |
      | 0 answer, 1 fault, 1.5 fault        |                                                                                                        |                                               |
      | 0 answer, 1 fault, 2 fault          | http://there cannot be reached: ConnectError. Check the… It has not answered for 60s; what waits is kept… |                                               |
      | 0 answer, 1 502, 60 502, 62 502     | http://there cannot be reached: 502… for 59m…                                                          | http://there cannot be reached: 502…          |
      | 0 answer, 1 502, 2 502, 63 502      | http://there…for 60s…; http://there…for 1h 2m…                                                         | http://there cannot be reached: 502…          |
      | 0 answer, 1 fault, 5 fault, 12 busy | http://there…for 4m…; http://there answers again, after 11m                                            |                                               |
      | 0 fault                             |                                                                                                        | http://there cannot be reached: ConnectError… |
      | 0 fault, 0.1 answer                 |                                                                                                        |                                               |
      | 0 answer, 1 live fault, 6 live fault, 12 live 502 | http://there…It has answered no live call for 5m…                                        | http://there cannot be reached: 502…          |
      | 0 answer, 1 live 502, 3 answer, 6 live 502, 11 answer, 12 live 502 | http://there…It has answered no live call for 5m…                       | http://there cannot be reached: 502…          |
      | 0 answer, 1 live 502, 2 answer, 3 live 502 | http://there cannot be reached: 502… for 2m…                                                    |                                               |
      | 0 answer, 1 fault, 5 fault, 6 live answer  | http://there…for 4m…                                                                            |                                               |
      | 0 answer, 1 fault, 5 fault, 6 live fault, 7 answer, 8 live answer | http://there…for 4m…; http://there answers again, after 6m               |                                               |
      | 0 answer, 1 live fault, 12 answer, 20 answer, 30 live fault |                                                                                |                                               |
      | 0 answer, 1 live fault, 3 live fault, 4 live answer                   | http://there…for 2m…; http://there answers live calls again, after 3m |                           |
      | 0 answer, 1 live fault, 3 answer, 9 answer, 12 answer, 12.5 fault, 12.6 answer, 14 answer, 20 answer, 27 answer |                             |                           |
      | 0 answer, 1 live fault, 3 answer, 12 live fault                       | http://there…It has answered no live call for 11m…                    |                           |
      | 0 answer, 1 live fault, 6 live answer, 12 live fault, 13 answer       |                                                                       |                           |
      | 0 answer, 1 live fault, 20 live fault                                 |                                                                       |                           |

  Scenario: A header of one's own is masked in what is received, unless it is harmless
    Then messages are shown with a header of one's own as follows
      | header                       | message                    | shown                      |
      | X-Gateway-Key: gw-0123456789 | no gw-0123456789 is known  | no [credential] is known   |
      | X-Auth: Bearer gw-0123456789 | no gw-0123456789 is known  | no [credential] is known   |
      | User-Agent: reviewer/1.0     | reviewer/1.0 is not served | reviewer/1.0 is not served |
      | X-Team: red                  | red is not served          | red is not served          |

  Scenario: In an answer, only a header of one's own that is certainly a credential is masked
    Then messages are shown with a header of one's own as follows
      | header                                   | message                      | shown           | in answers                   |
      | X-Gateway-Key: gw-0123456789012345678    | a gw-0123456789012345678 b   | a [credential] b | a [credential] b            |
      | X-Authorization: gw-0123456789012345678  | a gw-0123456789012345678 b   | a [credential] b | a [credential] b            |
      | X-Gateway: Bearer gw-0123456789012345678 | a gw-0123456789012345678 b   | a [credential] b | a [credential] b            |
      | X-Route-Model: claude-haiku-4-5-20251001 | a claude-haiku-4-5-20251001  | a [credential]  | a claude-haiku-4-5-20251001  |
      | X-Project: customer-support-summaries    | a customer-support-summaries | a [credential]  | a customer-support-summaries |
      | X-Author: customer-support-summaries     | a customer-support-summaries | a [credential]  | a customer-support-summaries |

  Scenario: The process that drives a run does not import the SDK
    When Python imports "claude_batch.providers.batch"
    Then the module "anthropic" is not imported
