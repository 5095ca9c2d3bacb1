/** `env`: what `sh` would see; what is assigned holds for the whole build. */
class EnvironmentView extends GroovyObjectSupport {
    private final Build build

    EnvironmentView(Build build) { this.build = build }

    static Map all(Build build) {
        Map params = build.params.collectEntries { key, value -> [key, value as String] }
        Context context = Context.current()
        params + build.scenario.env + build.globals + (context?.env ?: [:])
    }

    Object getProperty(String name) { all(build)[name] }

    void setProperty(String name, Object value) { build.globals[name] = value as String }
}
