import org.codehaus.groovy.runtime.InvokerHelper

/** What a block of a declarative pipeline says: its calls in their order, each `[name, arguments]`. */
class Block extends GroovyObjectSupport {
    final List<Map> calls = []
    final Map assigned = [:]
    private Script script

    /** Reads a block; names that are not its own are looked up in the script (params, env, functions). */
    static Block read(Closure body) {
        Block block = new Block()
        block.@script = body.thisObject as Script
        Closure reader = body.clone() as Closure
        reader.delegate = block
        reader.resolveStrategy = Closure.DELEGATE_FIRST
        reader()
        block
    }

    /** A block of steps, taken out of the blocks that it was read in: its names are those of the script. */
    static Closure free(Closure body) { body.rehydrate(body.thisObject, body.thisObject, body.thisObject) }

    Object invokeMethod(String name, Object arguments) {
        List given = arguments as List
        if (script.class.declaredMethods.any { it.name == name }) { // a function of the Jenkinsfile
            return InvokerHelper.invokeMethod(script, name, arguments)
        }
        calls.removeAll { call -> given.any { it.is(call) } } // logRotator(...) inside of buildDiscarder(...)
        Map call = [name: name, args: given]
        calls << call
        call
    }

    Object getProperty(String name) {
        if (name in ['calls', 'assigned']) { return this.@"$name" }
        if (name in ['none', 'any']) { return name }
        if (assigned.containsKey(name)) { return assigned[name] }
        throw new MissingPropertyException(name, Block)
    }

    void setProperty(String name, Object value) { assigned[name] = value }

    List all(String name) { calls.findAll { it.name == name } }

    /** The one argument of the one call of that name, or null. */
    Object one(String name) { calls.find { it.name == name }?.args?.getAt(0) }

    Block inner(String name) {
        Object body = one(name)
        body instanceof Closure ? read(body) : null
    }
}
