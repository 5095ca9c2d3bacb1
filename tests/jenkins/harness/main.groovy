// Runs builds, or checks Jenkinsfiles, or records jobs: groovy -cp FOLDER main.groovy SCENARIOS.json ANSWERS.json
// tests/jenkins/pipelines.py says what a scenario has.
import groovy.json.JsonOutput
import groovy.json.JsonSlurper
import org.codehaus.groovy.control.CompilerConfiguration

Map compiled = [:]
List answers = new JsonSlurper().parse(new File(args[0]), 'UTF-8').collect { Map scenario ->
    if (scenario.jobs) { return Jobs.of(new File(scenario.jobs as String), scenario.variables as Map) }
    String text = scenario.text ?: new File(scenario.jenkinsfile as String).getText('UTF-8')
    if (scenario.check) { return Syntax.check(text) }
    Class type = compiled.computeIfAbsent(text) {
        CompilerConfiguration configuration = new CompilerConfiguration(scriptBaseClass: 'PipelineScript')
        new GroovyClassLoader(Build.classLoader, configuration).parseClass(text, 'Jenkinsfile.groovy')
    }
    PipelineScript pipeline = type.newInstance() as PipelineScript
    Build build = new Build(scenario)
    pipeline.begin(build)
    String unexpected = null
    try {
        pipeline.run()
    } catch (Broken | Interrupted failed) {
        assert build.result != 'SUCCESS'
    } catch (Throwable wrong) { // the scenario, this harness, or Groovy code of the pipeline
        List places = wrong.stackTrace.findAll { it.fileName?.endsWith('.groovy') && it.lineNumber > 0 }
        unexpected = "$wrong\n" + places.take(12).join('\n')
    }
    [result: build.result, stages: build.stages, events: build.events, log: build.log as String, unexpected: unexpected]
}
new File(args[1]).text = JsonOutput.toJson(answers)
