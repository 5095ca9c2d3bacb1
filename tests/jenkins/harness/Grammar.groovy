/** What the declarative syntax and the steps allow, from the documentation of Jenkins and of the plugins. */
class Grammar {
    static final Map SECTIONS = [
        pipeline: [needed: ['agent', 'stages'],
                   allowed: ['agent', 'stages', 'post', 'environment', 'options', 'parameters', 'triggers', 'tools',
                             'libraries']],
        stage: [needed: [],
                allowed: ['agent', 'steps', 'stages', 'parallel', 'matrix', 'post', 'environment', 'options', 'when',
                          'tools', 'input', 'failFast']],
        matrix: [needed: ['axes', 'stages'],
                 allowed: ['axes', 'excludes', 'stages', 'agent', 'post', 'environment', 'options', 'when', 'tools',
                           'input']],
    ]
    static final List<String> CONTENTS = ['steps', 'stages', 'parallel', 'matrix']
    static final List<String> POST = ['always', 'changed', 'fixed', 'regression', 'aborted', 'failure', 'success',
                                      'unstable', 'unsuccessful', 'notBuilt', 'cleanup']
    static final List<String> WHEN = ['allOf', 'anyOf', 'not', 'branch', 'buildingTag', 'changelog', 'changeRequest',
                                      'changeset', 'environment', 'equals', 'expression', 'isRestartedRun', 'tag',
                                      'triggeredBy']
    static final List<String> WHEN_SETTINGS = ['beforeAgent', 'beforeInput', 'beforeOptions']
    static final Map AGENTS = [
        label: [], node: ['label', 'customWorkspace'], docker: ['image', 'label', 'args', 'alwaysPull', 'reuseNode'],
        dockerfile: ['filename', 'dir', 'label', 'additionalBuildArgs', 'args', 'reuseNode'],
        kubernetes: ['yaml', 'yamlFile', 'label', 'cloud', 'inheritFrom', 'defaultContainer'],
    ]
    static final Map PARAMETERS = [
        string: ['name', 'defaultValue', 'description', 'trim'], text: ['name', 'defaultValue', 'description'],
        booleanParam: ['name', 'defaultValue', 'description'], choice: ['name', 'choices', 'description'],
        password: ['name', 'defaultValue', 'description'],
    ]
    static final List<String> TRIGGERS = ['cron', 'pollSCM', 'upstream', 'githubPush', 'issueCommentTrigger']
    /** Options of the whole pipeline only, and those that a stage may have as well. */
    static final List<String> JOB_OPTIONS = [
        'buildDiscarder', 'disableConcurrentBuilds', 'disableResume', 'overrideIndexTriggers', 'preserveStashes',
        'quietPeriod', 'rateLimitBuilds', 'parallelsAlwaysFailFast', 'skipStagesAfterUnstable',
        'newContainerPerStage', 'checkoutToSubdirectory', 'copyArtifactPermission', 'disableRestartFromStage',
        'durabilityHint',
    ]
    static final List<String> STAGE_OPTIONS = ['skipDefaultCheckout', 'timeout', 'retry', 'timestamps', 'lock',
                                               'throttleJobProperty', 'warnError', 'ansiColor']
    /** Not to be used as steps of a declarative pipeline. */
    static final List<String> BLOCKED = ['stage', 'properties', 'parallel']

    private static StepShape shape(Map said) { new StepShape(said) }

    private static final List<String> HTML = ['reportDir', 'reportFiles', 'reportName', 'reportTitles', 'keepAll',
                                              'alwaysLinkToLastBuild', 'allowMissing', 'includes', 'escapeUnderscores']

    static final Map<String, StepShape> STEPS = [
        sh: shape(sole: 'script', required: ['script'],
            optional: ['returnStatus', 'returnStdout', 'label', 'encoding'], needsNode: true),
        echo: shape(sole: 'message', required: ['message']),
        error: shape(sole: 'message', required: ['message']),
        unstable: shape(sole: 'message', required: ['message']),
        script: shape(body: true),
        sleep: shape(sole: 'time', required: ['time'], optional: ['unit']),
        node: shape(sole: 'label', body: true),
        dir: shape(sole: 'path', required: ['path'], needsNode: true, body: true),
        deleteDir: shape(needsNode: true),
        fileExists: shape(sole: 'file', required: ['file'], needsNode: true),
        readFile: shape(sole: 'file', required: ['file'], optional: ['encoding'], needsNode: true),
        writeFile: shape(required: ['file', 'text'], optional: ['encoding'], needsNode: true),
        checkout: shape(sole: 'scm', required: ['scm'], needsNode: true),
        withEnv: shape(sole: 'overrides', required: ['overrides'], body: true),
        withCredentials: shape(sole: 'bindings', required: ['bindings'], needsNode: true, body: true),
        string: shape(required: ['credentialsId', 'variable'], value: true),
        usernamePassword: shape(required: ['credentialsId', 'usernameVariable', 'passwordVariable'], value: true),
        timeout: shape(required: ['time'], optional: ['unit', 'activity'], body: true),
        parallel: shape(sole: 'branches'),
        agent: shape(value: true),
        nonresumable: shape(value: true),
        retry: shape(sole: 'count', required: ['count'], optional: ['conditions'], body: true),
        timestamps: shape(body: true),
        lock: shape(sole: 'resource', body: true,
            optional: ['label', 'quantity', 'variable', 'inversePrecedence', 'skipIfLocked']),
        catchError: shape(optional: ['buildResult', 'stageResult', 'message', 'catchInterruptions'], body: true),
        warnError: shape(sole: 'message', required: ['message'], optional: ['catchInterruptions'], body: true),
        stash: shape(sole: 'name', required: ['name'], needsNode: true,
            optional: ['includes', 'excludes', 'allowEmpty', 'useDefaultExcludes']),
        unstash: shape(sole: 'name', required: ['name'], needsNode: true),
        archiveArtifacts: shape(sole: 'artifacts', required: ['artifacts'],
            optional: ['allowEmptyArchive', 'excludes', 'fingerprint', 'onlyIfSuccessful', 'followSymlinks',
                       'caseSensitive', 'defaultExcludes'], needsNode: true),
        junit: shape(sole: 'testResults', required: ['testResults'],
            optional: ['allowEmptyResults', 'skipMarkingBuildUnstable', 'skipPublishingChecks', 'keepLongStdio',
                       'keepProperties', 'healthScaleFactor', 'testDataPublishers', 'checksName'], needsNode: true),
        publishHTML: shape(sole: 'target', optional: HTML, needsNode: true),
        plot: shape(required: ['csvFileName', 'group', 'style'],
            optional: ['csvSeries', 'title', 'yaxis', 'numBuilds', 'useDescr', 'keepRecords', 'logarithmic',
                       'yaxisMinimum', 'yaxisMaximum', 'exclZero', 'description', 'propertiesSeries',
                       'xmlSeries', 'hasLegend'],
            needsNode: true),
        mail: shape(required: ['subject', 'body'],
            optional: ['to', 'cc', 'bcc', 'from', 'replyTo', 'charset', 'mimeType']),
    ]
}
