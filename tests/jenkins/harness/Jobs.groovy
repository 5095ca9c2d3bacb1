/** Runs a script of the plugin job-dsl and records what each job says: nested calls as maps, arguments as values. */
class Jobs {
    static Map of(File script, Map variables) {
        Map jobs = [:]
        Binding names = new Binding(variables)
        names.setVariable('pipelineJob') { String name, Closure body -> jobs[name] = said(body) }
        new GroovyShell(names).evaluate(script)
        jobs
    }

    private static Map said(Closure body) {
        Map found = [:]
        Closure reader = body.clone() as Closure
        reader.delegate = new Recorder(found: found)
        reader.resolveStrategy = Closure.DELEGATE_FIRST
        reader()
        found
    }

    static class Recorder extends GroovyObjectSupport {
        Map found

        Object invokeMethod(String name, Object given) {
            List values = given as List
            if (found.containsKey(name)) { throw new Unexpected("$name twice") }
            found[name] = values.size() == 1 && values[0] instanceof Closure ? said(values[0] as Closure) : values*.toString()
        }

        Object getProperty(String name) {
            if (name == 'found') { return this.@found }
            throw new MissingPropertyException(name, Recorder)
        }
    }
}
