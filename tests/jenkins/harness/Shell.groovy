import java.util.concurrent.TimeUnit

/** `sh`: a command in the workspace, with the variables of the build and nothing of this process's own. */
class Shell {
    private static final List<String> INHERITED = ['PATH', 'HOME', 'LANG', 'LC_ALL', 'TMPDIR']
    private final Build build
    private final Set<Process> running = Collections.synchronizedSet([] as Set)

    Shell(Build build) {
        this.build = build
        // What steps have started does not outlive a harness that is ended.
        Runtime.runtime.addShutdownHook(new Thread({ (running as List).each { end(it) } }))
    }

    Object run(Map a) {
        Context here = Context.current()
        String script = a.script as String
        synchronized (build.secrets) {
            if (build.secrets.any { script.contains(it as String) }) {
                throw new Broken("a secret is in the text of a command: use single quotes")
            }
        }
        Map record = [stage: here.stage, node: here.node.name, script: script, code: null]
        build.commands << record
        build.say("[${here.stage} on ${here.node.name}] + $script")
        File out = File.createTempFile('shell', '.out', build.folder)
        // A group of its own, so that a time limit ends all that the command has started; and with SIGINT
        // ignored, as an agent starts it in the background.
        ProcessBuilder builder = new ProcessBuilder('setsid', '/bin/sh', '-c',
            'trap "" INT; exec /bin/sh -xe -c "$1"', 'sh', script)
        builder.directory(here.inside())
        builder.redirectErrorStream(true)
        builder.redirectInput(new File('/dev/null'))
        if (a.returnStdout) { builder.redirectErrorStream(false).redirectError(new File('/dev/null')) }
        builder.redirectOutput(out)
        Map environment = builder.environment()
        environment.keySet().retainAll(INHERITED)
        EnvironmentView.all(build).each { key, value ->
            if (value == null) { environment.remove(key) } else { environment[key as String] = value as String }
        }
        long began = System.nanoTime()
        Process process = builder.start()
        running << process
        long most = (Math.min(here.remaining(), 3600d) * 1000) as long
        Map loss = lossOf(here, script)
        boolean ended = build.outside {
            if (loss) { strike(loss, process, here) }
            boolean inTime = loss || process.waitFor(most, TimeUnit.MILLISECONDS)
            if (!inTime) { end(process) }
            inTime
        }
        running.remove(process)
        record.seconds = (System.nanoTime() - began) / 1e9d
        String text = out.getText('UTF-8')
        out.delete()
        if (text) { build.say(text.trim().readLines().collect { "    $it" }.join('\n')) }
        if (!ended) {
            record.code = 'interrupted'
            throw new Interrupted("a time limit ended: $script")
        }
        if (loss && loss.how != 'restarted') {
            record.code = 'lost'
            here.node.lost = true
            if (loss.gone) { here.node.workspace.deleteDir() }
            throw new AgentLost(here.node.name as String)
        }
        int code = loss ? -1 : process.exitValue() // what a restart has ended says nothing
        record.code = code
        if (a.returnStatus) { return code }
        if (code != 0) { throw new Broken("script returned exit code $code: $script") }
        a.returnStdout ? text : null
    }

    /**
     * What the scenario says of this script: the agent is lost while it runs. `how`: removed; restarted, so that the
     * script has no exit code; disconnected, so that it goes on. `gone`: with its workspace.
     */
    private Map lossOf(Context here, String script) {
        Map loss = build.scenario.losses?.find { Map it ->
            !it.struck && script == it.during && (!it.node || it.node == here.node.name) &&
                (!it.cell || EnvironmentView.all(build).CELL == it.cell)
        }
        if (loss) { loss.struck = true }
        loss
    }

    /** Once the script has left the file `when`. */
    private void strike(Map loss, Process process, Context here) {
        while (process.alive && !new File(here.folder, loss.when as String).exists()) { Thread.sleep(20) }
        build.say("The agent ${here.node.name} is lost: ${loss.how}")
        if (loss.how == 'disconnected') { return }
        // All of its session: `timeout` makes a group of its own.
        ['/bin/sh', '-c', "kill -KILL \$(ps -o pid= -s ${process.pid()})" as String].execute().waitFor()
        process.waitFor()
    }

    /** As Jenkins does it: asked to end, then killed. */
    private static void end(Process process) {
        long group = process.pid()
        ["kill -TERM -- -$group", "kill -KILL -- -$group"].each { String command ->
            command.execute().waitFor()
            process.waitFor(3, TimeUnit.SECONDS)
        }
    }
}
