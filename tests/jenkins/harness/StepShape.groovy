/** What a step takes: its parameters, whether it needs an agent and a block. */
class StepShape {
    String sole
    List<String> required = []
    List<String> optional = []
    boolean needsNode = false
    boolean body = false
    boolean value = false // an argument of another step

    List<String> complaints(Collection names) {
        List known = required + optional + (sole ? [sole] : [])
        List found = (names - known).collect { "no parameter '$it' (there are: ${known.join(', ')})" as String }
        found + (required - names).collect { "needs the parameter '$it'" as String }
    }
}
