// The jobs of perfdash (plugin job-dsl). Parameters, timer and limits are in the Jenkinsfiles, and hold from the
// first build on. REPOSITORY and BRANCH come from jenkins.yaml.
Map<String, String> pipelines = [
    nightly: 'Jenkinsfile',
    bisect: 'ci/Jenkinsfile.bisect',
    compare: 'ci/Jenkinsfile.compare',
]

pipelines.each { name, path ->
    pipelineJob("perfdash-${name}") {
        description("${path} of ${REPOSITORY}, branch ${BRANCH}: see docs/jenkins.md there.")
        definition {
            cpsScm {
                scm {
                    git {
                        remote {
                            url(REPOSITORY)
                        }
                        branch(BRANCH)
                    }
                }
                scriptPath(path)
                lightweight(true)
            }
        }
    }
}
