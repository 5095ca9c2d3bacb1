/** What a Jenkinsfile is run as: `pipeline` takes the model, every other name is a step or a variable. */
abstract class PipelineScript extends Script {
    private Steps harnessSteps
    private Interpreter harnessInterpreter

    void begin(Steps steps, Interpreter interpreter) {
        this.@harnessSteps = steps
        this.@harnessInterpreter = interpreter
    }

    void pipeline(Closure body) { this.@harnessInterpreter.run(body) }

    Object methodMissing(String name, Object arguments) { this.@harnessSteps.call(name, arguments as List) }

    Object propertyMissing(String name) {
        Build build = this.@harnessSteps.build
        if (name == 'params') { return build.params.asImmutable() }
        if (name == 'env') { return new EnvironmentView(build) }
        if (name == 'currentBuild') { return new BuildView(build) }
        if (name == 'scm') { return 'scm' }
        Map env = EnvironmentView.all(build)
        if (env.containsKey(name)) { return env[name] }
        throw new MissingPropertyException("no such property: $name", name, PipelineScript)
    }
}
