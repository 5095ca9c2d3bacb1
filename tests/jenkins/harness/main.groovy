// Runs one build, or checks Jenkinsfiles: groovy -cp harness harness/main.groovy SCENARIO.json
// Prints JSON. The scenario's keys are said in tests/jenkins/controller.py.
import groovy.json.JsonOutput
import groovy.json.JsonSlurper
import org.codehaus.groovy.control.CompilerConfiguration

Map scenario = new HashMap(new JsonSlurper().parse(new File(args[0]), 'UTF-8') as Map)
if (scenario.check) {
    List found = scenario.check.collect { Syntax.check(new File(it as String).getText('UTF-8')) }
    new File(args[1]).text = JsonOutput.toJson([syntax: found])
    return
}
if (scenario.jobs) {
    new File(args[1]).text = JsonOutput.toJson(Jobs.of(new File(scenario.jobs as String), scenario.variables as Map))
    return
}
String text = new File(scenario.jenkinsfile as String).getText('UTF-8')
List errors = Syntax.check(text)
if (errors) {
    new File(args[1]).text = JsonOutput.toJson([syntax: errors])
    return
}
Build build = new Build(scenario)
Steps steps = new Steps(build)
CompilerConfiguration configuration = new CompilerConfiguration(scriptBaseClass: 'PipelineScript')
PipelineScript pipeline = new GroovyShell(PipelineScript.classLoader, new Binding(), configuration)
    .parse(text, 'Jenkinsfile.groovy') as PipelineScript
pipeline.begin(steps, new Interpreter(build, steps))
String broken = null
try {
    build.running { pipeline.run() }
} catch (Throwable unexpected) { // the harness itself, or Groovy code of the pipeline
    List places = unexpected.stackTrace.findAll { it.fileName?.endsWith('.groovy') && it.lineNumber > 0 }
    broken = "$unexpected\n" + places.take(15).join('\n')
    build.worsen('FAILURE')
}
build.close()
new File(args[1]).text = JsonOutput.toJson([
    syntax: [], result: build.result, stages: build.stages, commands: build.commands, mails: build.mails,
    published: build.published, params: build.params, stashes: build.stashes, unexpected: broken,
    description: build.description,
])
System.exit(0) // no thread of a branch keeps it alive
