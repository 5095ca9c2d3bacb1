import org.codehaus.groovy.ast.CodeVisitorSupport
import org.codehaus.groovy.ast.ModuleNode
import org.codehaus.groovy.ast.expr.ClosureExpression
import org.codehaus.groovy.ast.expr.Expression
import org.codehaus.groovy.ast.expr.MapExpression
import org.codehaus.groovy.ast.expr.MethodCallExpression
import org.codehaus.groovy.ast.stmt.ExpressionStatement
import org.codehaus.groovy.ast.stmt.Statement
import org.codehaus.groovy.control.CompilationFailedException
import org.codehaus.groovy.control.CompilationUnit
import org.codehaus.groovy.control.Phases

/**
 * Holds a Jenkinsfile against the declarative syntax and the steps, without running it. From the documentation of
 * Jenkins and of the plugins; only what the three pipelines use is known, anything else is an error.
 */
class Syntax {
    static final Map SECTIONS = [
        pipeline: ['agent', 'parameters', 'triggers', 'options', 'environment', 'stages', 'post'],
        stage: ['agent', 'when', 'environment', 'steps', 'stages', 'post'],
        post: ['always', 'failure', 'aborted'], agent: ['label'], when: ['expression'], triggers: ['cron'],
        parameters: ['string', 'choice'],
        options: ['disableConcurrentBuilds', 'timestamps', 'buildDiscarder', 'timeout'],
    ]
    /** Arguments of each step; `*`: needed, and may be given without its name. `{`: takes a block. */
    static final Map STEPS = [
        sh: 'script* returnStatus returnStdout', echo: 'message*', error: 'message*', unstable: 'message*',
        script: '{', node: 'label* {', checkout: 'scm*', withEnv: 'overrides* {', withCredentials: 'bindings* {',
        string: 'credentialsId! variable!', timeout: 'time! unit {', parallel: 'branches*', agent: '',
        nonresumable: '', retry: 'count! conditions {', lock: 'resource* {', stash: 'name! includes! allowEmpty',
        catchError: 'buildResult stageResult catchInterruptions {', unstash: 'name*',
        archiveArtifacts: 'artifacts* allowEmptyArchive', junit: 'testResults* allowEmptyResults',
        publishHTML: 'target*', plot: 'csvFileName! group! style! title csvSeries', mail: 'to subject! body!',
    ]
    /** Named arguments that are no steps'. */
    static final Map ARGUMENTS = [
        string: 'name! defaultValue! description!', choice: 'name! choices! description!',
        timeout: 'time! unit', target: 'reportName! reportDir! reportFiles! includes keepAll alwaysLinkToLastBuild ' +
            'allowMissing',
    ]

    final List<String> errors = []
    private Set<String> functions = []

    static List<String> check(String text) {
        Syntax syntax = new Syntax()
        CompilationUnit unit = new CompilationUnit()
        unit.addSource('Jenkinsfile', text)
        try {
            unit.compile(Phases.CONVERSION)
        } catch (CompilationFailedException wrong) {
            return ["does not parse: ${wrong.message}" as String]
        }
        syntax.module(unit.AST.modules[0])
        syntax.errors
    }

    /** What is wrong with the arguments of a step. */
    static List<String> complaints(String shape, Collection<String> named, boolean unnamed) {
        List words = shape.tokenize(' ') - '{'
        List needed = words.findAll { it =~ /[!*]/ }*.replaceAll(/[!*]/, '')
        List known = words*.replaceAll(/[!*]/, '')
        List wrong = (named - known).collect { "no parameter '$it'" as String }
        if (unnamed) { return words.any { it.endsWith('*') } ? wrong : wrong + 'arguments must be named' }
        wrong + (needed - named).collect { "needs the parameter '$it'" as String }
    }

    private void module(ModuleNode module) {
        functions = module.methods*.name as Set
        module.methods.each { code(it.code) }
        List top = module.statementBlock.statements
        List pipelines = calls(top, false).findAll { it.methodAsString == 'pipeline' }
        if (pipelines.size() != 1) { errors << 'there must be one pipeline block at the top'; return }
        Map sections = sections(pipelines[0], 'pipeline')
        ['agent', 'stages'].findAll { !sections[it] }.each { wrong(pipelines[0], "pipeline needs '$it'") }
        stages(sections.stages)
    }

    /** The sections of a block by their names, each checked by itself. */
    private Map sections(MethodCallExpression call, String kind) {
        Map found = [:]
        calls(body(call), true).each { MethodCallExpression section ->
            String name = section.methodAsString
            if (!(name in SECTIONS[kind])) { wrong(section, "$kind has no '$name'"); return }
            boolean repeated = kind in ['parameters', 'options']
            if (found[name] && !repeated) { wrong(section, "$kind has '$name' twice") }
            found[name] = section
            if (kind == 'post' || name == 'steps') { steps(body(section)) }
            if (kind in ['parameters', 'options'] && ARGUMENTS[name]) { arguments(section, ARGUMENTS[name]) }
            boolean none = name == 'agent' && !block(section)
            if (SECTIONS[name] && name != 'string' && !none) { sections(section, name) }
            if (none && arguments(section)*.text != ['none']) { wrong(section, 'agent none, or a block') }
            if (name == 'environment') { environment(section) }
            if (name == 'cron' && arguments(section)[0].text.tokenize(' ').size() != 5) {
                wrong(section, 'cron needs five fields')
            }
        }
        found
    }

    private void stages(MethodCallExpression call) {
        List names = []
        calls(call ? body(call) : [], true).each { MethodCallExpression stage ->
            if (stage.methodAsString != 'stage') { wrong(stage, "only stages here"); return }
            String name = arguments(stage)[0].text
            if (name in names) { wrong(stage, "two stages '$name'") }
            names << name
            Map sections = sections(stage, 'stage')
            if (!sections.steps == !sections.stages) { wrong(stage, "stage '$name' needs steps or stages") }
            if (sections.stages) { stages(sections.stages) }
        }
        if (call && !names) { wrong(call, 'no stages') }
    }

    private void environment(MethodCallExpression call) {
        body(call).findAll { !(it instanceof ExpressionStatement && it.expression.class.simpleName == 'BinaryExpression') }
            .each { wrong(it, 'environment takes NAME = "value" only') }
    }

    /** Steps in a declarative block: calls only; within `script` anything goes. */
    private void steps(List<Statement> statements) {
        calls(statements, true).each { MethodCallExpression step ->
            String name = step.methodAsString
            List inner = block(step) ? body(step) : null
            boolean free = name in functions && inner != null
            if (name in ['stage', 'parallel']) { wrong(step, "the step '$name' cannot be used here") }
            if (inner != null && name != 'script') { steps(inner) } else if (inner != null) { code(step) }
            if (!free) { known(step) }
        }
    }

    /** Groovy elsewhere: every call by a bare name must be a step or a function. */
    private void code(Object node) {
        Syntax outer = this
        node?.visit(new CodeVisitorSupport() {
            @Override
            void visitMethodCallExpression(MethodCallExpression call) {
                super.visitMethodCallExpression(call)
                if (call.implicitThis && !(call.methodAsString in ['body', 'call'])) { outer.known(call) }
            }
        })
    }

    private void known(MethodCallExpression call) {
        String name = call.methodAsString
        if (name in functions) { return }
        String shape = STEPS[name]
        if (shape == null) { wrong(call, "no such step: $name"); return }
        if (shape.contains('{') != (block(call) != null)) { wrong(call, "$name: a block too many, or none") }
        arguments(call, shape)
    }

    private void arguments(MethodCallExpression call, String shape) {
        List given = arguments(call) - block(call)
        Map named = given && given[0] instanceof MapExpression ?
            given[0].mapEntryExpressions.collectEntries { [it.keyExpression.text, it.valueExpression] } : [:]
        complaints(shape, named.keySet(), given && !named).each { wrong(call, "${call.methodAsString}: $it") }
        named.findAll { ARGUMENTS[it.key] && it.value instanceof MapExpression }.each { name, value ->
            complaints(ARGUMENTS[name], value.mapEntryExpressions*.keyExpression*.text, false)
                .each { wrong(call, "${call.methodAsString}: $it") }
        }
    }

    private List<MethodCallExpression> calls(List<Statement> statements, boolean only) {
        List found = []
        statements.each { Statement statement ->
            Expression given = statement instanceof ExpressionStatement ? statement.expression : null
            if (given instanceof MethodCallExpression && given.implicitThis) {
                found << given
            } else if (only) {
                wrong(statement, 'only steps and sections here; other Groovy belongs into script { }')
            }
        }
        found
    }

    private List<Statement> body(MethodCallExpression call) {
        if (block(call)) { return block(call).code.statements }
        wrong(call, "${call.methodAsString} needs a block")
        []
    }

    private static ClosureExpression block(MethodCallExpression call) {
        List given = arguments(call)
        given && given.last() instanceof ClosureExpression ? given.last() as ClosureExpression : null
    }

    private static List<Expression> arguments(MethodCallExpression call) {
        call.arguments.respondsTo('getExpressions') ? call.arguments.expressions : [call.arguments]
    }

    private void wrong(Object node, String what) { errors << "line ${node.lineNumber}: $what".toString() }
}
