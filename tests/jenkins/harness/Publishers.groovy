/** What is kept and shown of a build: artifacts, test results, pages, plots. A glob that matches nothing fails. */
class Publishers {
    private final Build build

    Publishers(Build build) { this.build = build }

    Object archive(Map a) {
        File here = Context.current().inside()
        String full = build.scenario.no_room_for
        if (full && (a.artifacts as String).contains(full)) { throw new Broken("no space left for ${a.artifacts}") }
        List names = Files.matching(here, a.artifacts as String, a.excludes as String)
        if (!names) {
            if (a.allowEmptyArchive != true) {
                throw new Broken("no artifacts found that match the file pattern \"${a.artifacts}\"")
            }
            build.say("No artifacts match ${a.artifacts}")
            return null
        }
        Files.copy(here, build.archive(), names)
        build.say("Archived ${names.size()} files of ${a.artifacts}")
        null
    }

    /** Whether a test failed; then the build is unstable. */
    boolean junit(Map a) {
        File here = Context.current().inside()
        List names = Files.matching(here, a.testResults as String)
        if (!names && a.allowEmptyResults != true) {
            throw new Broken("no test report files were found: ${a.testResults}")
        }
        int failures = names.sum(0) { String name ->
            def suite = new XmlSlurper(false, false).parse(new File(here, name))
            suite.depthFirst().findAll { it.name() in ['failure', 'error'] }.size()
        } as int
        build.published << [kind: 'junit', files: names, failures: failures]
        if (failures && a.skipMarkingBuildUnstable != true) { build.worsen('UNSTABLE') }
        failures > 0 && a.skipMarkingBuildUnstable != true
    }

    Object html(Map a) {
        Map target = (a.target ?: a) as Map
        File folder = new File(Context.current().inside(), target.reportDir as String)
        List missing = (target.reportFiles as String).split(',')*.trim().findAll { !new File(folder, it).file }
        if (missing) {
            if (target.allowMissing == true) { return null }
            // The plugin marks the build so, and goes on.
            build.say("Specified HTML file(s) '${missing.join(', ')}' in '$folder' do not exist")
            build.worsen('FAILURE')
            throw new Broken("publishHTML: ${target.reportDir}: no ${missing.join(', ')}")
        }
        List names = Files.matching(folder, (target.includes ?: '**/*') as String)
        Files.copy(folder, new File(build.folder, "html/${target.reportName}"), names)
        build.published << [kind: 'html', name: target.reportName, files: names]
        null
    }

    Object plot(Map a) {
        File here = Context.current().inside()
        (a.csvSeries as List).each { Map series ->
            List names = Files.matching(here, series.file as String)
            if (!names) { throw new Broken("plot ${a.title}: no file matches ${series.file}") }
            names.each { String name ->
                List lines = new File(here, name).readLines()
                if (lines.size() < 2 || lines[0].split(',').size() != lines[1].split(',').size()) {
                    throw new Broken("plot ${a.title}: $name needs a line of names and one of values")
                }
            }
            build.published << [kind: 'plot', name: a.title, files: names]
        }
        null
    }
}
