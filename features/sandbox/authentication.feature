Feature: The sandbox knows its callers as the API does

  Scenario Outline: A call without a usable key is refused
    Given a sandbox
    When the sandbox is called with GET "/v1/messages/batches"
      | header        | value           |
      | x-api-key     | <x-api-key>     |
      | authorization | <authorization> |
    Then the sandbox answers 401 authentication_error saying "<message>"
    And the sandbox's error tells the request id of its header

    Examples:
      | x-api-key      | authorization         | message     |
      | (none)         | (none)                | is required |
      | (none)         | Basic abc             | is required |
      | sk-invalid-key | (none)                | invalid     |
      | (none)         | Bearer sk-invalid-key | invalid     |

  Scenario Outline: Both headers carry a key
    Given a sandbox
    When the sandbox is called with GET "/v1/messages/batches"
      | header        | value           |
      | x-api-key     | <x-api-key>     |
      | authorization | <authorization> |
    Then the sandbox answers 200
    And the sandbox's log has the calls
      | route | status | fault |
      | list  | 200    | None  |

    Examples:
      | x-api-key | authorization |
      | sk-a      | (none)        |
      | (none)    | Bearer sk-a   |

  Scenario: Every answer names its request, organization and workspace
    Given a sandbox
    When the sandbox is called with GET "/v1/messages/batches"
    Then the sandbox's header "request-id" is "req_sandbox_000000000001"
    And the sandbox's header "anthropic-organization-id" is "5a9db0c5-0000-4000-8000-000000000000"
    And the sandbox's header "anthropic-workspace-id" is "wrkspc_01SandboxDefault"

  Scenario: The workspace header can be left out
    Given a sandbox with the settings
      """
      {"workspace_header": false}
      """
    When the sandbox is called with GET "/v1/messages/batches"
    Then the sandbox's header "anthropic-workspace-id" is "(none)"

  Scenario: A batch is visible only in its workspace
    Given a sandbox with the settings
      """
      {"workspaces": {"sk-one": "wrkspc_one", "sk-two": "wrkspc_two"}}
      """
    And the sandbox has a batch of 1 requests
      | header    | value  |
      | x-api-key | sk-one |
    When the sandbox is called with GET "/v1/messages/batches/{batch}"
      | header    | value  |
      | x-api-key | sk-two |
    Then the sandbox answers 404 not_found_error saying "not found"
    When the sandbox is called with GET "/v1/messages/batches"
      | header    | value  |
      | x-api-key | sk-two |
    Then the sandbox's list shows the batches none
    And the sandbox's header "anthropic-workspace-id" is "wrkspc_two"
    When the sandbox is called with GET "/v1/messages/batches"
      | header                 | value      |
      | x-api-key              | sk-one     |
      | anthropic-workspace-id | wrkspc_one |
    Then the sandbox's list shows the batches 1

  Scenario: A key of one workspace cannot ask for another
    Given a sandbox with the settings
      """
      {"workspaces": {"sk-one": "wrkspc_one"}}
      """
    When the sandbox is called with GET "/v1/messages/batches"
      | header                 | value      |
      | x-api-key              | sk-one     |
      | anthropic-workspace-id | wrkspc_two |
    Then the sandbox answers 403 permission_error saying "another workspace"

  Scenario: A key of the organization works in the workspace that it asks for
    Given a sandbox
    And the sandbox has a batch of 1 requests
    When the sandbox is called with GET "/v1/messages/batches"
      | header                 | value      |
      | anthropic-workspace-id | wrkspc_two |
    Then the sandbox's list shows the batches none
    And the sandbox's header "anthropic-workspace-id" is "wrkspc_two"

  Scenario: The fault plan can map keys and hide the header, and shows no key
    Given a sandbox with the fault plan
      """
      {"workspaces": {"sk-secret-key-1234": "wrkspc_plan"}, "workspace_header": true}
      """
    When the sandbox is called with GET "/v1/messages/batches"
      | header    | value              |
      | x-api-key | sk-secret-key-1234 |
    Then the sandbox's header "anthropic-workspace-id" is "wrkspc_plan"
    When the sandbox is called with GET "/sandbox/faults"
    Then the sandbox's answer has the fields
      | field             | value         |
      | workspaces.…1234 | "wrkspc_plan" |
    And the sandbox's answer contains no "sk-secret"

  Scenario Outline: The API version is required and must be known
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 10, "messages": [{"role": "user", "content": "Hi"}]}
      """
    Then the sandbox answers 200
    When the sandbox is called with <method> "<path>"
      | header            | value     |
      | anthropic-version | <version> |
    Then the sandbox answers 400 invalid_request_error saying "<message>"

    Examples:
      | method | path                               | version    | message                |
      | POST   | /v1/messages                       | (none)     | header is required     |
      | POST   | /v1/messages                       | 1999-01-01 | is not a valid version |
      | GET    | /v1/messages/batches               | (none)     | header is required     |
      | GET    | /v1/messages/batches/none          | (none)     | header is required     |
      | GET    | /v1/messages/batches/none/results  | (none)     | header is required     |
      | POST   | /v1/messages/batches/none/cancel   | 1999-01-01 | is not a valid version |
      | DELETE | /v1/messages/batches/none          | (none)     | header is required     |
      | GET    | /v1/models                         | (none)     | header is required     |

  Scenario Outline: A path that is no route of the API is not found
    Given a sandbox
    When the sandbox is called with <method> "<path>"
    Then the sandbox answers <status>
    And the sandbox's error tells the request id of its header

    Examples:
      | method | path         | status |
      | GET    | /v1/nothing  | 404    |
      | PUT    | /v1/messages | 405    |
      | GET    | /v1/messages/batches/ | 404 |
