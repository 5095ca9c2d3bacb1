import java.util.concurrent.TimeUnit
import java.util.concurrent.locks.Condition
import java.util.concurrent.locks.ReentrantLock

/**
 * One build of a job: its agents, result, log, artifacts and what it sent. What a controller would hold.
 * Folders below `root`: agents/NODE/workspace, builds/NUMBER/{archive,html,stashes,log}.
 */
class Build {
    /** From good to bad; a result only ever gets worse. */
    static final List<String> RESULTS = ['SUCCESS', 'UNSTABLE', 'FAILURE', 'NOT_BUILT', 'ABORTED']

    final Map scenario
    final File root
    final File folder
    final Map params = [:]
    final Map globals = Collections.synchronizedMap([:])
    final Map stashes = Collections.synchronizedMap([:])
    final List stages = Collections.synchronizedList([])
    final List commands = Collections.synchronizedList([])
    final List mails = Collections.synchronizedList([])
    final List published = Collections.synchronizedList([])
    final List notes = Collections.synchronizedList([])
    final Set secrets = Collections.synchronizedSet([] as Set)
    String displayName
    String description
    private String result = 'SUCCESS'
    private final long began = System.nanoTime()
    private final Writer log
    /** Held by the one branch that runs Groovy code, as a controller has one such thread; given up to wait. */
    private final ReentrantLock gate = new ReentrantLock()
    private final Condition freed = gate.newCondition()
    private final Map busy = [:]
    private final Set locked = [] as Set

    Build(Map scenario) {
        this.scenario = scenario
        root = new File(scenario.root as String)
        folder = new File(root, "builds/${scenario.number}")
        folder.mkdirs()
        log = new File(folder, 'log').newWriter('UTF-8')
    }

    synchronized void worsen(String to) {
        if (RESULTS.indexOf(to) < 0) { throw new IllegalArgumentException("no such result: $to") }
        if (RESULTS.indexOf(to) > RESULTS.indexOf(result)) { result = to }
    }

    synchronized String getResult() { result }

    /** Secrets are masked, as the credentials plugin does. */
    void say(String text) {
        String clean = text
        synchronized (secrets) { secrets.each { clean = clean.replace(it as String, '****') } }
        synchronized (log) { log.write(clean + '\n'); log.flush() }
    }

    File archive() { new File(folder, 'archive') }

    /** Seconds of this machine that an amount of the pipeline's time takes: a test cannot wait for hours. */
    double seconds(Number time, String unit) {
        double each = [SECONDS: 1, MINUTES: 60, HOURS: 3600, DAYS: 86400][unit]
        time * each * ((scenario.clock ?: 1) as double)
    }

    /** Milliseconds of the pipeline's time since the build began. */
    long duration() { ((System.nanoTime() - began) / 1e6 / ((scenario.clock ?: 1) as double)) as long }

    /** Waits for a free executor of a node with the label, then runs `body` with it. */
    Object onNode(String label, Context context, Closure body) {
        Map node = take(label, context)
        try {
            return body(node)
        } finally {
            busy[node.name].remove(node.slot)
            freed.signalAll()
        }
    }

    private Map take(String label, Context context) {
        List fit = scenario.nodes.findAll { node -> !label || matches(label, node) }
        if (!fit) { throw new Broken("no agent has the label '$label'; the build would wait for ever") }
        Map found = null
        waiting(context, "an agent with the label '$label'") {
            found = fit.findResult { node ->
                Set slots = busy.computeIfAbsent(node.name) { [] as Set }
                Integer slot = (1..(node.executors ?: 1)).find { !(it in slots) }
                slot && slots.add(slot) ? [name: node.name, slot: slot] : null
            }
            found != null
        }
        String second = found.slot > 1 ? "@${found.slot}" : ''
        File workspace = new File(root, "agents/${found.name}/workspace$second")
        workspace.mkdirs()
        found + [workspace: workspace]
    }

    private static boolean matches(String label, Map node) {
        label.split(/\s*&&\s*/).every { it == node.name || it in node.labels }
    }

    Object withLock(String name, Context context, Closure body) {
        waiting(context, "the lock '$name'") { locked.add(name) }
        say("Lock acquired on [$name]")
        try {
            return body()
        } finally {
            locked.remove(name)
            freed.signalAll()
        }
    }

    private void waiting(Context context, String what, Closure taken) {
        while (!taken()) {
            double left = context.remaining()
            if (left <= 0) { throw new Interrupted("timed out while waiting for $what") }
            freed.await(Math.min(left, 5d) * 1000 as long, TimeUnit.MILLISECONDS)
        }
    }

    /** Runs `body` while this is the one thread that runs. */
    Object running(Closure body) {
        gate.lock()
        try { return body() } finally { gate.unlock() }
    }

    /** Lets the others run while `body` waits for something outside. */
    Object outside(Closure body) {
        gate.unlock()
        try { return body() } finally { gate.lock() }
    }

    void close() { log.close() }
}
