import org.codehaus.groovy.runtime.InvokerHelper

/** A step failed: the build fails, unless someone catches it. */
class Broken extends RuntimeException { Broken(String message) { super(message) } }
/** A time limit or a person ended what ran. */
class Interrupted extends RuntimeException { Interrupted(String message) { super(message) } }
class AgentLost extends Interrupted { AgentLost(String message) { super(message) } }
/** Not the pipeline's fault: the scenario or this harness is wrong. */
class Unexpected extends Error { Unexpected(String message) { super(message) } }

/** What a block of a declarative pipeline says: its calls in their order, each `[name, arguments]`. */
class Block extends GroovyObjectSupport {
    final List<Map> calls = []
    final Map assigned = [:]
    private Script script

    static Block read(Closure body) {
        Block block = new Block()
        block.@script = body.thisObject as Script
        Closure reader = body.clone() as Closure
        reader.delegate = block
        reader.resolveStrategy = Closure.DELEGATE_FIRST
        reader()
        block
    }

    Object invokeMethod(String name, Object given) {
        if (script.class.declaredMethods.any { it.name == name }) { return InvokerHelper.invokeMethod(script, name, given) }
        calls << [name: name, args: given as List]
        calls.last()
    }

    Object getProperty(String name) {
        if (name in ['calls', 'assigned']) { return this.@"$name" }
        if (name == 'none') { return name }
        if (assigned.containsKey(name)) { return assigned[name] }
        throw new MissingPropertyException(name, Block)
    }

    void setProperty(String name, Object value) { assigned[name] = value }

    Object one(String name) { calls.find { it.name == name }?.args?.getAt(0) }

    Block inner(String name) { one(name) instanceof Closure ? read(one(name) as Closure) : null }
}

/**
 * Runs one build of a declarative pipeline, branches of `parallel` one after another, by a clock of its own.
 * `sh` is answered by the scenario, or run for real where the scenario has a `root`; agents are folders then.
 * What happened is in `events`.
 */
class Build {
    static final List<String> RESULTS = ['SUCCESS', 'UNSTABLE', 'FAILURE', 'NOT_BUILT', 'ABORTED']
    final Map scenario
    final Map params = [:]
    final Map globals = [:]
    final List<Map> events = []
    final Map<String, String> stages = [:]
    final Set secrets = []
    final StringBuilder log = new StringBuilder()
    String result = 'SUCCESS'
    double clock = 0 // seconds
    Map here = [env: [:], node: null, stage: '', deadline: Double.MAX_VALUE]
    private final Set stashed = []

    Build(Map scenario) { this.scenario = scenario }

    void run(Closure body) {
        Block pipeline = Block.read(body)
        pipeline.inner('parameters').calls.each { Map call ->
            Map said = call.args[0] as Map
            String value = call.name == 'choice' ? said.choices[0] : said.defaultValue
            params[said.name] = (scenario.params ?: [:]).get(said.name, value)
            if (call.name == 'choice' && !(params[said.name] in said.choices)) { throw new Unexpected("$said.name") }
        }
        (scenario.params ?: [:]).keySet().findAll { !params.containsKey(it) }.each { throw new Unexpected("no $it") }
        Map limit = pipeline.inner('options').one('timeout') as Map
        within([deadline: limit.time * (limit.unit == 'HOURS' ? 3600 : 60) as double]) {
            section(pipeline, '') { stagesOf(pipeline.inner('stages'), '') }
        }
    }

    private Object within(Map changes, Closure body) {
        Map before = here
        here = before + changes
        try { body() } finally { here = before }
    }

    Map env() {
        (params + (scenario.env ?: [:]) + globals + here.env).findAll { it.value != null && it.value != '' }
    }

    /** A stage, or all of the pipeline: its agent, variables and body; then `post`, whatever became of it. */
    private void section(Block block, String name, Closure body) {
        Throwable failed = null
        Closure whole = {
            Map values = block.inner('environment')?.assigned?.collectEntries { key, value -> [key, value as String] }
            within([env: here.env + (values ?: [:])]) {
                try { body() } catch (Broken | Interrupted error) { failed = error; note(error) }
                failed = post(block, name, failed)
            }
        }
        String label = block.inner('agent')?.one('label')
        if (label) { onNode(label) { checkout(); whole() } } else { whole() }
        if (failed) { throw failed }
    }

    private Throwable post(Block block, String name, Throwable before) {
        Throwable failed = before
        ['always', 'aborted', 'failure'].each { String condition ->
            Closure body = block.inner('post')?.one(condition) as Closure
            if (!body || !(condition == 'always' || result == condition.toUpperCase())) { return }
            try {
                within([stage: "$name post".trim() as String, deadline: Double.MAX_VALUE], { free(body).call() })
            } catch (Broken | Interrupted error) { failed = failed ?: error; note(error) }
        }
        failed
    }

    private void stagesOf(Block block, String prefix) {
        Throwable failed = null
        block.calls.each { Map call ->
            String name = prefix + call.args[0]
            if (failed) { stages[name] = 'SKIPPED'; return }
            Block stage = Block.read(call.args[1] as Closure)
            stages[name] = 'SUCCESS'
            within([stage: name]) {
                Closure when = stage.inner('when')?.one('expression') as Closure
                try {
                    section(stage, name) {
                        if (when && !free(when).call()) { stages[name] = 'NOT_BUILT'; return }
                        if (stage.one('steps')) { free(stage.one('steps') as Closure).call() }
                        if (stage.one('stages')) { stagesOf(stage.inner('stages'), "$name / ") }
                    }
                } catch (Broken | Interrupted error) { failed = error; note(error) }
            }
        }
        if (failed) { throw failed }
    }

    private static Closure free(Closure body) { body.rehydrate(body.thisObject, body.thisObject, body.thisObject) }

    private void note(Throwable error) {
        mark(error instanceof Interrupted ? 'ABORTED' : 'FAILURE', error instanceof Interrupted ? 'ABORTED' : 'FAILURE')
        say("ERROR: $error.message")
    }

    private void mark(String ofBuild, String ofStage) {
        Closure worse = { String a, String b -> RESULTS.indexOf(b) > RESULTS.indexOf(a) ? b : a }
        result = worse(result, ofBuild)
        if (here.stage in stages) { stages[here.stage] = worse(stages[here.stage], ofStage) }
    }

    private void say(String text) {
        String clean = text
        secrets.each { clean = clean.replace(it as String, '****') }
        log << clean << '\n'
    }

    private Map happened(Map event) {
        events << ([stage: here.stage, node: here.node] + event)
        events.last()
    }

    /** Waits for what never comes, until a limit ends it. */
    private void hang(String what) {
        if (here.deadline == Double.MAX_VALUE) { throw new Unexpected("$what would wait for ever") }
        clock = here.deadline
        throw new Interrupted("a time limit ended: $what")
    }

    private void onNode(String label, Closure body) {
        String name = (scenario.agents ?: [:]).get(label, label)
        if (!name) { hang("the wait for an agent '$label'") }
        Map onIt = [NODE_NAME: name, WORKSPACE: workspace(name).path]
        within([node: name, env: here.env + onIt, lost: [false]]) { body() }
    }

    private File outside(String name) { new File((scenario.root ?: '/nowhere') as String, name) }

    File workspace(String name = here.node) { outside("agents/$name") }

    /** A step by its name; its arguments are one value or a map, and a block at the end. */
    Object step(String name, List given) {
        String shape = Syntax.STEPS[name]
        if (shape == null) { throw new Unexpected("no such step: $name") }
        Closure body = given && given.last() instanceof Closure ? given.last() as Closure : null
        List plain = body ? given.init() : given
        Map named = plain && plain[0] instanceof Map && name != 'parallel' ? plain[0] as Map : [:]
        List wrong = Syntax.complaints(shape, named.keySet(), plain && !named)
        if (wrong) { throw new Unexpected("$name: ${wrong.join('; ')}") }
        boolean onAgent = name in ['sh', 'stash', 'unstash', 'archiveArtifacts', 'junit', 'publishHTML', 'plot', 'checkout',
                                   'withCredentials']
        if (onAgent && !here.node) { throw new Broken("$name needs an agent, and there is none") }
        if (onAgent && here.lost[0]) { throw new Broken("$name: $here.node is offline") }
        if (name in ['string', 'agent', 'nonresumable']) { return [step: name] + named }
        Object value = named ?: (plain ? plain[0] : null)
        this."do_$name"(value, body)
    }

    Object do_echo(Object text, Closure body) { say(text as String) }

    Object do_error(Object text, Closure body) { throw new Broken(text as String) }

    Object do_script(Object none, Closure body) { body() }

    Object do_unstable(Object text, Closure body) { say("WARNING: $text"); mark('UNSTABLE', 'UNSTABLE') }

    Object do_checkout(Object scm, Closure body) { checkout() }

    Object do_node(Object label, Closure body) { onNode(label as String, body) }

    Object do_withEnv(Object pairs, Closure body) {
        within([env: here.env + pairs.collectEntries { String pair -> pair.split('=', 2) as List }], body)
    }

    Object do_withCredentials(Object bindings, Closure body) {
        Map found = bindings.collectEntries { Map binding ->
            String secret = (scenario.credentials ?: [:])[binding.credentialsId]
            if (secret == null) { throw new Broken("could not find credentials entry with ID '$binding.credentialsId'") }
            secrets << secret
            [binding.variable, secret]
        }
        within([env: here.env + found], body)
    }

    Object do_timeout(Object a, Closure body) {
        double seconds = a.time * (a.unit == 'HOURS' ? 3600d : 60d)
        within([deadline: Math.min(here.deadline as double, clock + seconds)], body)
    }

    Object do_retry(Object a, Closure body) {
        for (int left = a.count - 1; ; left--) {
            try { return body() } catch (AgentLost lost) {
                if (left == 0 || !a.conditions.any { it.step == 'agent' }) { throw lost }
                say("Retrying: $lost.message")
            }
        }
    }

    Object do_lock(Object name, Closure body) {
        happened(kind: 'lock', name: name as String)
        within([locks: (here.locks ?: []) + (name as String)], body)
    }

    Object do_catchError(Object a, Closure body) {
        try { body() } catch (Interrupted ended) {
            if (a.catchInterruptions == false) { throw ended }
            note(ended)
        } catch (Broken failed) {
            say("ERROR: $failed.message")
            mark(a.buildResult, a.stageResult)
        }
        null
    }

    /** Branches begin at the same time; each is a stage. All run to their end; then the first error, if any. */
    Object do_parallel(Object branches, Closure none) {
        double began = clock
        double ended = clock
        Throwable failed = null
        branches.each { String name, Closure body ->
            clock = began
            within([stage: "$here.stage / $name" as String]) {
                stages[here.stage] = 'SUCCESS'
                try { body() } catch (Broken | Interrupted error) { failed = failed ?: error; note(error) }
            }
            ended = Math.max(ended, clock)
        }
        clock = ended
        if (failed) { throw failed }
    }

    Object do_mail(Object a, Closure body) {
        if (scenario.mail_refused) { throw new Broken('mail: connection refused') }
        happened([kind: 'mail'] + a.collectEntries { key, value -> [key, value as String] })
    }

    Object do_sh(Object given, Closure none) {
        Map a = given instanceof Map ? given : [script: given]
        String script = a.script
        Map env = env()
        if (secrets.any { script.contains(it as String) }) { throw new Unexpected("a secret on a command line: $script") }
        Map answer = scenario.answers?.find { Map it ->
            script ==~ it.script && (!it.cell || it.cell == env.CELL) && (!it.stage || it.stage == here.stage) && it.times != 0
        }
        if (answer?.times) { answer.times -= 1 }
        Map open = env.findAll { !secrets.contains(it.value) }.collectEntries { name, value -> [name, value as String] }
        Map event = happened(kind: 'sh', script: script, env: open, secrets: (env.keySet() - open.keySet()) as List,
            locks: here.locks ?: [], code: null)
        say("[$here.stage on $here.node] + $script")
        if (answer?.lost) {
            if (!answer.answered) { here.lost[0] = true }
            throw new AgentLost("the agent $here.node was removed")
        }
        if (answer?.abort) { throw new Interrupted('a person stopped the build') }
        if (answer?.hangs) { hang(script) }
        String text = answer?.out ?: ''
        int code = answer?.code ?: 0
        if (scenario.root && answer == null) { (code, text) = real(script, env, a.returnStdout as boolean) }
        event.code = code
        if (a.returnStatus) { return code }
        if (code != 0) { throw new Broken("script returned exit code $code: $script") }
        a.returnStdout ? text : null
    }

    /** As an agent runs it: with the variables of the build and few of this process's own, SIGINT ignored. */
    private List real(String script, Map env, boolean apart) {
        ProcessBuilder builder = new ProcessBuilder('/bin/sh', '-c', 'trap "" INT; exec /bin/sh -xe -c "$1"', 'sh', script)
        builder.directory(workspace())
        builder.environment().keySet().retainAll(['PATH', 'HOME', 'LANG', 'LC_ALL', 'TMPDIR'])
        env.each { key, value -> builder.environment()[key as String] = value as String }
        File out = File.createTempFile('shell', '.out')
        File err = apart ? new File('/dev/null') : null
        if (err) { builder.redirectError(err) } else { builder.redirectErrorStream(true) }
        Process process = builder.redirectInput(new File('/dev/null')).redirectOutput(out).start()
        int code = process.waitFor()
        String text = out.getText('UTF-8')
        out.delete()
        say(text)
        [code, text]
    }

    private void checkout() {
        if (scenario.root) { bash(workspace(), 'cp -a "$1"/. .', scenario.scm as String) }
    }

    private static List<String> bash(File folder, String script, String... words) {
        folder.mkdirs()
        Process process = (['bash', '-euc', script, 'bash'] + (words as List)).execute(null as List, folder)
        String text = process.in.text
        if (process.waitFor() != 0) { throw new Unexpected("$script: $process.err.text") }
        text.readLines()
    }

    /** The files that Ant's patterns match in the workspace; null where nothing is run for real. */
    private List<String> matching(String patterns, File folder = workspace()) {
        if (!scenario.root) { return null }
        String list = 'shopt -s globstar nullglob dotglob; for file in $1; do [ ! -f "$file" ] || echo "$file"; done'
        patterns.split(', *').collectMany { bash(folder, list, it as String) }
    }

    private void copy(File from, File to, List<String> names) {
        to.mkdirs()
        if (names) { bash(from, 'cp -a --parents -t "$@"', ([to.path] + names) as String[]) }
    }

    Object do_archiveArtifacts(Object given, Closure none) {
        Map a = given instanceof Map ? given : [artifacts: given]
        if (scenario.full && a.artifacts.contains(scenario.full)) { throw new Broken("no space left for $a.artifacts") }
        List files = matching(a.artifacts as String)
        if (files) { copy(workspace(), outside('archive'), files) }
        happened(kind: 'archive', pattern: a.artifacts as String, files: files)
    }

    Object do_stash(Object a, Closure none) {
        List files = matching(a.includes as String)
        if (scenario.root) { copy(workspace(), outside("stashes/$a.name"), files) }
        stashed << (a.name as String)
        happened(kind: 'stash', name: a.name as String, pattern: a.includes as String)
    }

    Object do_unstash(Object name, Closure none) {
        if (!stashed.contains(name as String)) { throw new Broken("no such saved stash '$name'") }
        if (scenario.root) { copy(outside("stashes/$name"), workspace(), matching('**', outside("stashes/$name"))) }
        happened(kind: 'unstash', name: name as String)
    }

    Object do_junit(Object a, Closure none) {
        List files = published('junit', a.testResults as String)
        int failures = files?.sum(0) { new File(workspace(), it as String).text.count('<failure') } ?: scenario.failures ?: 0
        if (failures) { mark('UNSTABLE', 'UNSTABLE') }
    }

    Object do_publishHTML(Object a, Closure none) {
        String folder = a.target.reportDir
        published('html', "$folder/$a.target.reportFiles")
    }

    Object do_plot(Object a, Closure none) { a.csvSeries.each { published('plot', it.file as String) } }

    private List published(String kind, String pattern) {
        List files = matching(pattern)
        if (files == []) { throw new Broken("$kind: no file matches $pattern") }
        happened(kind: kind, pattern: pattern, files: files)
        files
    }
}

/** What a Jenkinsfile is run as: `pipeline` takes the model, every other name is a step or a variable. */
abstract class PipelineScript extends Script {
    private Build harnessBuild

    void begin(Build build) { this.@harnessBuild = build }

    void pipeline(Closure body) { this.@harnessBuild.run(body) }

    Object methodMissing(String name, Object given) { this.@harnessBuild.step(name, given as List) }

    Object propertyMissing(String name) {
        Build build = this.@harnessBuild
        if (name == 'params') { return build.params.asImmutable() }
        if (name == 'env') { return new EnvironmentView(build: build) }
        if (name == 'currentBuild') {
            return [currentResult: build.result, result: build.result, duration: (build.clock * 1000) as long,
                    startTimeInMillis: build.scenario.started as long]
        }
        if (name == 'scm') { return 'scm' }
        if (build.env().containsKey(name)) { return build.env()[name] }
        throw new MissingPropertyException("no such property: $name", name, PipelineScript)
    }
}

/** `env`: what is assigned holds for the whole build. */
class EnvironmentView extends GroovyObjectSupport {
    Build build

    Object getProperty(String name) { this.@build.env()[name] }

    void setProperty(String name, Object value) {
        if (name == 'build') { this.@build = value as Build } else { this.@build.globals[name] = value as String }
    }
}
