/** The agent was removed under a step: Jenkins aborts what runs there, and `retry` with `agent()` begins it again. */
class AgentLost extends Interrupted {
    AgentLost(String name) { super("the agent $name was removed") }
}
