import java.util.concurrent.Callable
import java.util.concurrent.ExecutionException
import java.util.concurrent.Executors

/** Runs the model of a declarative pipeline: stages in order, cells of a matrix side by side, post sections. */
class Interpreter {
    private final Build build
    private final Steps steps
    private Block root

    Interpreter(Build build, Steps steps) {
        this.build = build
        this.steps = steps
        steps.interpreter = this
    }

    static Map onAgent(Map node) { [NODE_NAME: node.name, WORKSPACE: node.workspace.absolutePath] }

    void run(Closure body) {
        root = Block.read(body)
        parameters()
        Throwable error = null
        Context.within({ }) {
            Closure whole = {
                onAgentOf(root, false) {
                    withEnvironment(root) {
                        error = stagesOf(root.inner('stages'), null)
                        error = post(root, error, '')
                    }
                }
            }
            try {
                wrapped(root, whole)
            } catch (Broken | Interrupted failed) {
                // Where an option (the time limit) ended all, post still runs, outside of it.
                error = error ?: failed
                worsen(error)
                error = post(root, error, '')
            }
        }
        worsen(error)
    }

    private void parameters() {
        Map given = build.scenario.params ?: [:]
        root.inner('parameters')?.calls?.each { Map call ->
            Map said = call.args[0] as Map
            Object value = call.name == 'choice' ? said.choices[0] : said.defaultValue
            if (given.containsKey(said.name)) { value = given[said.name] }
            if (call.name == 'choice' && !(value in said.choices)) {
                throw new Broken("${said.name}: no choice '$value'")
            }
            build.params[said.name] = call.name == 'booleanParam' ? value as boolean : (value ?: '') as String
        }
        (given.keySet() - build.params.keySet()).each { throw new Broken("the pipeline has no parameter $it") }
    }

    /** Runs the stages one after another; once one has failed, the rest are skipped. The first error, or null. */
    private Throwable stagesOf(Block stages, Throwable before, String prefix = '') {
        Throwable error = before
        stages.calls.each { Map call ->
            String name = prefix + call.args[0]
            if (error != null) {
                record(name).result = 'SKIPPED'
                build.say("Stage \"$name\" skipped due to earlier failure(s)")
                return
            }
            try {
                stage(name, Block.read(call.args[1] as Closure))
            } catch (Broken | Interrupted failed) {
                error = failed
                worsen(failed)
            }
        }
        error
    }

    private Map record(String name) {
        Map made = Collections.synchronizedMap([name: name, result: 'SUCCESS', node: null])
        build.stages << made
        made
    }

    private void stage(String name, Block stage) {
        Map record = record(name)
        Context.within({ it.stage = name; it.record = record }) {
            try {
                conditionally(stage, record) { inStage(name, stage, record) }
            } catch (Broken | Interrupted failed) {
                build.say("ERROR in ${name}: ${failed.message}")
                record.result = failed instanceof Interrupted ? 'ABORTED' : 'FAILURE'
                throw failed
            }
        }
    }

    /** `when`, before or in the agent; options, agent, environment around the body. */
    private void conditionally(Block stage, Map record, Closure body) {
        Block when = stage.inner('when')
        boolean early = when?.one('beforeAgent') || when?.one('beforeOptions')
        boolean elsewhere = stage.one('matrix') || stage.one('parallel')
        if (when && (early || elsewhere) && !holds(when)) { skip(record); return }
        wrapped(stage) {
            onAgentOf(stage, true) {
                record.node = Context.current().node?.name
                if (when && !early && !elsewhere && !holds(when)) { skip(record); return }
                withEnvironment(stage, body)
            }
        }
    }

    private void skip(Map record) {
        record.result = 'NOT_BUILT'
        build.say("Stage \"${record.name}\" skipped due to when conditional")
    }

    private void inStage(String name, Block stage, Map record) {
        Throwable error = null
        try {
            if (stage.one('steps')) {
                Block.free(stage.one('steps') as Closure).call()
            } else if (stage.one('stages')) {
                error = stagesOf(stage.inner('stages'), null, "$name / ")
            } else if (stage.one('matrix')) {
                matrix(name, stage.inner('matrix'))
            } else {
                parallel(stage.inner('parallel').calls.collectEntries { Map call ->
                    [call.args[0], { this.stage("$name / ${call.args[0]}", Block.read(call.args[1] as Closure)) }]
                })
            }
        } catch (Broken | Interrupted failed) {
            error = failed
            worsen(failed)
        }
        error = post(stage, error, name)
        if (error != null) { throw error }
    }

    private void matrix(String name, Block matrix) {
        List cells = Cells.of(matrix)
        parallel(cells.collectEntries { Map cell ->
            String label = "$name / " + cell.collect { axis, value -> "$axis=$value" }.join(', ')
            [label, {
                Map record = record(label)
                Context.within({ it.stage = label; it.record = record; it.env += cell }) {
                    conditionally(matrix, record) {
                        Throwable error = stagesOf(matrix.inner('stages'), null, "$label / ")
                        error = post(matrix, error, label)
                        if (error != null) {
                            record.result = error instanceof Interrupted ? 'ABORTED' : 'FAILURE'
                            throw error
                        }
                    }
                }
            }]
        })
    }

    /** `parallel` of a script: each branch is a stage of its own. */
    Object branches(Map<String, Closure> said) {
        String outer = Context.current().stage
        parallel(said.collectEntries { String name, Closure body ->
            [name, {
                Map record = record("$outer / $name")
                Context.within({ it.stage = record.name; it.record = record }) {
                    try {
                        body()
                    } catch (Broken | Interrupted failed) {
                        record.result = failed instanceof Interrupted ? 'ABORTED' : 'FAILURE'
                        throw failed
                    }
                }
            }]
        })
        null
    }

    /** All branches run to their end; then the first error, if any. */
    private void parallel(Map<String, Closure> branches) {
        Context outer = Context.current()
        def pool = Executors.newCachedThreadPool()
        try {
            List running = branches.values().collect { Closure branch ->
                pool.submit({
                    build.running {
                        Context.within({
                            it.node = outer.node
                            it.folder = outer.folder
                            it.env = new LinkedHashMap(outer.env)
                            it.deadline = outer.deadline
                        }, branch)
                    }
                } as Callable)
            }
            Throwable first = null
            running.each { future ->
                try {
                    build.outside { future.get() }
                } catch (ExecutionException failed) {
                    first = first ?: failed.cause
                }
            }
            if (first != null) { worsen(first); throw first }
        } finally {
            pool.shutdown()
        }
    }

    private boolean holds(Block when) {
        when.calls.findAll { !(it.name in Grammar.WHEN_SETTINGS) }.every { condition(it) }
    }

    private boolean condition(Map call) {
        Object first = call.args ? call.args[0] : null
        switch (call.name) {
            case 'expression': return Block.free(first as Closure).call() as boolean
            case 'not': return !condition(Block.read(first as Closure).calls[0])
            case 'allOf': return Block.read(first as Closure).calls.every { condition(it) }
            case 'anyOf': return Block.read(first as Closure).calls.any { condition(it) }
            case 'environment': return EnvironmentView.all(build)[first.name] == first.value
            case 'equals': return first.expected == first.actual
            case 'triggeredBy': return build.scenario.cause == first
            case 'changeRequest': return EnvironmentView.all(build).CHANGE_ID != null
            default: throw new Broken("the harness does not know the condition '${call.name}'")
        }
    }

    private void wrapped(Block stage, Closure body) {
        Closure whole = body
        List wrappers = (stage.inner('options')?.calls ?: []).findAll { Grammar.STEPS[it.name]?.body }
        wrappers.reverse().each { Map option ->
            Closure inner = whole
            whole = { steps.call(option.name as String, (option.args as List) + [inner]) }
        }
        whole()
    }

    private void onAgentOf(Block stage, boolean inner, Closure body) {
        Object said = stage.one('agent')
        if (said == null || said == 'none') { body(); return }
        String label = said == 'any' ? '' : Block.read(said as Closure).one('label') as String
        steps.call('node', [label, {
            boolean skip = [root, stage].any { it.inner('options')?.all('skipDefaultCheckout') }
            if (!skip) { steps.checkout() }
            body()
        }])
    }

    private void withEnvironment(Block stage, Closure body) {
        Block said = stage.inner('environment')
        Map values = said ? said.assigned.collectEntries { key, value -> [key, value as String] } : [:]
        // An empty value takes the variable away, as Jenkins does.
        Context.within({ c -> values.each { key, value -> c.env[key] = value ?: null } }, body)
    }

    /** The conditions of a post section that hold, in Jenkins' order; one that breaks does not stop the others. */
    private Throwable post(Block stage, Throwable before, String name) {
        Throwable error = before
        Block said = stage.inner('post')
        if (!said) { return error }
        String result = build.result
        if (error != null) { result = error instanceof Interrupted ? 'ABORTED' : worse(result, 'FAILURE') }
        Grammar.POST.each { String condition ->
            Closure body = said.one(condition) as Closure
            if (!body || !applies(condition, result)) { return }
            try {
                Context.within({
                    it.stage = "$name post $condition".trim()
                    it.deadline = Long.MAX_VALUE
                }, Block.free(body))
            } catch (Broken | Interrupted failed) {
                build.say("Error when executing $condition post condition: ${failed.message}")
                worsen(failed)
                error = error ?: failed
            }
        }
        error
    }

    private boolean applies(String condition, String result) {
        String before = build.scenario.previous
        switch (condition) {
            case ['always', 'cleanup']: return true
            case 'changed': return before != result
            case 'fixed': return result == 'SUCCESS' && before in ['FAILURE', 'UNSTABLE']
            case 'regression': return before == 'SUCCESS' && result != 'SUCCESS'
            case 'unsuccessful': return result != 'SUCCESS'
            case 'notBuilt': return result == 'NOT_BUILT'
            default: return result == condition.toUpperCase()
        }
    }

    private static String worse(String one, String other) {
        Build.RESULTS[Math.max(Build.RESULTS.indexOf(one), Build.RESULTS.indexOf(other))]
    }

    private void worsen(Throwable error) {
        if (error != null) { build.worsen(error instanceof Interrupted ? 'ABORTED' : 'FAILURE') }
    }
}
