/** Where a branch of the build is: agent, folder, variables, time limit. One a thread; copied, never shared. */
class Context {
    private static final ThreadLocal<Context> CURRENT = new ThreadLocal<>()

    Map node
    File folder
    Map env = [:]
    long deadline = Long.MAX_VALUE
    String stage = ''
    Map record = null

    static Context current() { CURRENT.get() }

    Context copy() {
        new Context(node: node, folder: folder, env: new LinkedHashMap(env), deadline: deadline, stage: stage,
            record: record)
    }

    /** Seconds until the nearest time limit. */
    double remaining() {
        deadline == Long.MAX_VALUE ? 1e9d : (deadline - System.nanoTime()) / 1e9d
    }

    /** Runs `body` with a changed copy of the present context, then puts the present one back. */
    static Object within(Closure change, Closure body) {
        Context before = CURRENT.get()
        Context inner = before ? before.copy() : new Context()
        change(inner)
        CURRENT.set(inner)
        try { return body() } finally { CURRENT.set(before) }
    }

    File inside() {
        if (node == null) {
            throw new Broken("a step that requires a node context was called where 'agent none' was specified")
        }
        folder
    }
}
