import org.codehaus.groovy.ast.MethodNode
import org.codehaus.groovy.ast.ModuleNode
import org.codehaus.groovy.ast.expr.ClosureExpression
import org.codehaus.groovy.ast.expr.ConstantExpression
import org.codehaus.groovy.ast.expr.Expression
import org.codehaus.groovy.ast.expr.MapExpression
import org.codehaus.groovy.ast.expr.MethodCallExpression
import org.codehaus.groovy.ast.expr.TupleExpression
import org.codehaus.groovy.ast.expr.VariableExpression
import org.codehaus.groovy.ast.stmt.BlockStatement
import org.codehaus.groovy.ast.stmt.ExpressionStatement
import org.codehaus.groovy.ast.stmt.Statement
import org.codehaus.groovy.control.CompilationUnit
import org.codehaus.groovy.control.CompilationFailedException
import org.codehaus.groovy.control.Phases

/** Holds a Jenkinsfile against Grammar, without running it. `errors`: `line N: what`. */
class Syntax {
    final List<String> errors = []
    private final Set<String> functions = [] as Set
    private final Set<String> parameters = [] as Set

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

    private void module(ModuleNode module) {
        functions.addAll(module.methods*.name)
        module.methods.each { MethodNode method -> code(method.code) }
        List found = calls(module.statementBlock, false).findAll { it.methodAsString == 'pipeline' }
        if (found.size() != 1) {
            errors << 'there must be one pipeline block at the top'
            return
        }
        pipeline(found[0])
    }

    private void pipeline(MethodCallExpression call) {
        Map sections = sections(call, 'pipeline')
        if (sections.agent) { agent(sections.agent) }
        if (sections.options) { options(sections.options, Grammar.JOB_OPTIONS + Grammar.STAGE_OPTIONS) }
        if (sections.parameters) { described(sections.parameters, Grammar.PARAMETERS, 'parameter') }
        if (sections.triggers) { triggers(sections.triggers) }
        if (sections.environment) { environment(sections.environment) }
        if (sections.stages) { stages(sections.stages, false) }
        if (sections.post) { post(sections.post) }
    }

    private void stages(MethodCallExpression call, boolean nested) {
        List names = []
        List inner = calls(block(call), true)
        if (!inner) { wrong(call, 'no stages') }
        inner.each { MethodCallExpression stage ->
            if (stage.methodAsString != 'stage') {
                wrong(stage, "only stages here, not '${stage.methodAsString}'")
                return
            }
            Expression name = arguments(stage) ? arguments(stage)[0] : null
            if (!(name instanceof ConstantExpression)) { wrong(stage, 'a stage needs a name'); return }
            if (name.value in names) { wrong(stage, "two stages '${name.value}'") }
            names << name.value
            this.stage(stage, name.value as String, nested)
        }
    }

    private void stage(MethodCallExpression call, String name, boolean nested) {
        Map sections = sections(call, 'stage')
        List contents = Grammar.CONTENTS.findAll { sections[it] }
        if (contents.size() != 1) { wrong(call, "stage '$name' needs one of ${Grammar.CONTENTS.join(', ')}") }
        if (nested && (sections.parallel || sections.matrix)) {
            wrong(call, "stage '$name': no parallel or matrix in another")
        }
        if ((sections.parallel || sections.matrix) && sections.agent) {
            wrong(call, "stage '$name': no agent beside parallel or matrix")
        }
        common(sections)
        if (sections.steps) { steps(block(sections.steps), true) }
        if (sections.stages) { stages(sections.stages, nested) }
        if (sections.parallel) { stages(sections.parallel, true) }
        if (sections.matrix) { matrix(sections.matrix) }
    }

    private void matrix(MethodCallExpression call) {
        Map sections = sections(call, 'matrix')
        common(sections)
        Map axes = [:]
        if (sections.axes) { axes = this.axes(block(sections.axes), ['values']) }
        if (sections.excludes) {
            calls(block(sections.excludes), true).each { MethodCallExpression exclude ->
                if (exclude.methodAsString != 'exclude') { wrong(exclude, 'only exclude here'); return }
                this.axes(block(exclude), ['values', 'notValues']).each { name, values ->
                    if (!axes.containsKey(name)) { wrong(exclude, "no axis '$name'") }
                    (values - (axes[name] ?: [])).each { wrong(exclude, "axis '$name' has no value '$it'") }
                }
            }
        }
        if (sections.stages) { stages(sections.stages, true) }
    }

    private Map axes(BlockStatement body, List kinds) {
        Map found = [:]
        calls(body, true).each { MethodCallExpression axis ->
            if (axis.methodAsString != 'axis') { wrong(axis, 'only axis here'); return }
            Map said = calls(block(axis), true).collectEntries { [it.methodAsString, arguments(it)] }
            List unknown = said.keySet().toList() - ['name'] - kinds
            if (unknown || !said.name || said.size() != 2) {
                wrong(axis, "an axis has a name and ${kinds.join(' or ')}")
                return
            }
            List values = said[kinds.find { said[it] }] as List
            if (!(values + said.name).every { it instanceof ConstantExpression }) {
                wrong(axis, 'names and values of an axis are plain strings')
                return
            }
            if (found.containsKey(said.name[0].value)) { wrong(axis, "two axes '${said.name[0].value}'") }
            found[said.name[0].value] = values*.value
        }
        found
    }

    private void common(Map sections) {
        if (sections.agent) { agent(sections.agent) }
        if (sections.options) { options(sections.options, Grammar.STAGE_OPTIONS) }
        if (sections.environment) { environment(sections.environment) }
        if (sections.when) { when(block(sections.when), true) }
        if (sections.post) { post(sections.post) }
    }

    private void agent(MethodCallExpression call) {
        Expression given = arguments(call)[0]
        if (given instanceof VariableExpression && given.name in ['none', 'any']) { return }
        if (!(given instanceof ClosureExpression)) { wrong(call, 'agent none, any or a block'); return }
        List kinds = calls(block(call), true)
        if (kinds.size() != 1) { wrong(call, 'one kind of agent') }
        kinds.each { MethodCallExpression kind ->
            List known = Grammar.AGENTS[kind.methodAsString]
            if (known == null) { wrong(kind, "no kind of agent '${kind.methodAsString}'"); return }
            if (arguments(kind) && arguments(kind)[0] instanceof ClosureExpression) {
                calls(block(kind), true).findAll { !(it.methodAsString in known) }.each {
                    wrong(it, "agent ${kind.methodAsString} has no '${it.methodAsString}'")
                }
            }
        }
    }

    private void options(MethodCallExpression call, List known) {
        calls(block(call), true).each { MethodCallExpression option ->
            String name = option.methodAsString
            if (!(name in known)) { wrong(option, "no option '$name' here") }
            if (Grammar.STEPS[name]) { argumentsOf(option, Grammar.STEPS[name]) }
        }
    }

    private void triggers(MethodCallExpression call) {
        calls(block(call), true).each { MethodCallExpression trigger ->
            if (!(trigger.methodAsString in Grammar.TRIGGERS)) {
                wrong(trigger, "no trigger '${trigger.methodAsString}'")
            }
            if (trigger.methodAsString == 'cron') {
                Expression said = arguments(trigger)[0]
                String text = said instanceof ConstantExpression ? said.value : ''
                if (text.trim().split(/\s+/).size() != 5) { wrong(trigger, "cron needs five fields, not '$text'") }
            }
        }
    }

    private void described(MethodCallExpression call, Map kinds, String what) {
        calls(block(call), true).each { MethodCallExpression each ->
            List known = kinds[each.methodAsString]
            if (known == null) { wrong(each, "no kind of $what '${each.methodAsString}'"); return }
            Map said = named(each)
            (said.keySet() - known).each { wrong(each, "$what ${each.methodAsString} has no '$it'") }
            if (!said.name) { wrong(each, "a $what needs a name"); return }
            if (!parameters.add(said.name.text)) { wrong(each, "two ${what}s '${said.name.text}'") }
        }
    }

    private void environment(MethodCallExpression call) {
        block(call).statements.each { Statement statement ->
            String text = statement instanceof ExpressionStatement ? statement.expression.class.simpleName : ''
            if (text != 'BinaryExpression') { wrong(statement, 'environment takes NAME = "value" only') }
        }
    }

    private void when(BlockStatement body, boolean top) {
        List found = calls(body, true)
        List conditions = found.findAll { !(it.methodAsString in Grammar.WHEN_SETTINGS) }
        if (!conditions) { errors << "line ${body.lineNumber}: an empty when" as String }
        conditions.each { MethodCallExpression condition ->
            String name = condition.methodAsString
            if (!(name in Grammar.WHEN)) { wrong(condition, "no condition '$name'"); return }
            if (name in ['allOf', 'anyOf', 'not']) { when(block(condition), false) }
            if (name == 'not' && calls(block(condition), true).size() != 1) {
                wrong(condition, 'not takes one condition')
            }
        }
        if (!top && found.size() != conditions.size()) {
            errors << "line ${body.lineNumber}: beforeAgent is for the top of when".toString()
        }
    }

    private void post(MethodCallExpression call) {
        List conditions = calls(block(call), true)
        if (!conditions) { wrong(call, 'an empty post') }
        conditions.each { MethodCallExpression condition ->
            String name = condition.methodAsString
            if (!(name in Grammar.POST)) { wrong(condition, "post has no '$name'"); return }
            if (conditions.count { it.methodAsString == name } > 1) { wrong(condition, "post has '$name' twice") }
            steps(block(condition), true)
        }
    }

    /** Steps in a declarative block: calls only, no statements of Groovy; inside of `script` anything goes. */
    private void steps(BlockStatement body, boolean strict) {
        if (strict && !body.statements) { errors << "line ${body.lineNumber}: no steps" as String }
        body.statements.each { Statement statement ->
            Expression said = statement instanceof ExpressionStatement ? statement.expression : null
            if (!(said instanceof MethodCallExpression) || !said.implicitThis) {
                wrong(statement, 'only steps here; other Groovy belongs into script { }')
                return
            }
            String name = said.methodAsString
            if (name in functions) { return }
            if (name in Grammar.BLOCKED) { wrong(said, "the step '$name' cannot be used here"); return }
            StepShape step = Grammar.STEPS[name]
            if (step == null || step.value) { wrong(said, "no such step: $name"); return }
            argumentsOf(said, step)
            List given = arguments(said)
            boolean hasBody = given && given.last() instanceof ClosureExpression
            if (step.body != hasBody) { wrong(said, "$name ${step.body ? 'needs a' : 'takes no'} block"); return }
            if (hasBody && name == 'script') { code(given.last().code) }
            if (hasBody && name != 'script') { steps(given.last().code, true) }
        }
    }

    /** Groovy outside of the declarative blocks: every call by a bare name must be a step or a function. */
    private void code(Statement body) {
        Set known = functions
        Syntax outer = this
        body?.visit(new org.codehaus.groovy.ast.CodeVisitorSupport() {
            @Override
            void visitMethodCallExpression(MethodCallExpression call) {
                super.visitMethodCallExpression(call)
                String name = call.methodAsString
                if (!call.implicitThis || name in known || name in ['body', 'call']) { return }
                StepShape step = Grammar.STEPS[name]
                if (step == null) { outer.wrong(call, "no such step: $name") } else { outer.argumentsOf(call, step) }
            }
        })
    }

    private void argumentsOf(MethodCallExpression call, StepShape step) {
        List given = arguments(call).findAll { !(it instanceof ClosureExpression) }
        Map said = named(call)
        Collection names = said.keySet()
        if (!said && given) { names = step.sole ? [step.sole] : [] }
        if (given && !said && !step.sole) { wrong(call, "${call.methodAsString}: arguments must be named") }
        if (given.size() > 1) { wrong(call, "${call.methodAsString}: too many arguments") }
        step.complaints(names).each { wrong(call, "${call.methodAsString}: $it") }
    }

    private Map sections(MethodCallExpression call, String kind) {
        Map found = [:]
        calls(block(call), true).each { MethodCallExpression section ->
            String name = section.methodAsString
            if (!(name in Grammar.SECTIONS[kind].allowed)) { wrong(section, "$kind has no section '$name'"); return }
            if (found[name]) { wrong(section, "$kind has '$name' twice") }
            found[name] = section
        }
        (Grammar.SECTIONS[kind].needed - found.keySet()).each { wrong(call, "$kind needs the section '$it'") }
        found
    }

    private List<MethodCallExpression> calls(BlockStatement body, boolean only) {
        List found = []
        body?.statements?.each { Statement statement ->
            Expression said = statement instanceof ExpressionStatement ? statement.expression : null
            if (said instanceof MethodCallExpression && said.implicitThis) {
                found << said
            } else if (only) {
                wrong(statement, 'not a section, directive or step')
            }
        }
        found
    }

    private BlockStatement block(MethodCallExpression call) {
        List given = arguments(call)
        if (given && given.last() instanceof ClosureExpression) { return given.last().code as BlockStatement }
        wrong(call, "${call.methodAsString} needs a block")
        new BlockStatement()
    }

    private static List<Expression> arguments(MethodCallExpression call) {
        call.arguments instanceof TupleExpression ? call.arguments.expressions : [call.arguments]
    }

    private static Map<String, Expression> named(MethodCallExpression call) {
        Expression first = arguments(call) ? arguments(call)[0] : null
        List entries = first instanceof MapExpression ? first.mapEntryExpressions : []
        entries.collectEntries { [it.keyExpression.text, it.valueExpression] }
    }

    private void wrong(def node, String what) { errors << "line ${node.lineNumber}: $what".toString() }
}
