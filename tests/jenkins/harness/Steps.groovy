/** The steps that the pipelines use, done for real on this machine: commands run, files are copied. */
class Steps {
    final Build build
    final Shell shell
    final Publishers publishers
    Interpreter interpreter

    Steps(Build build) {
        this.build = build
        shell = new Shell(build)
        publishers = new Publishers(build)
    }

    /** A step by its name. Arguments are one value, a map, and a body at the end. */
    Object call(String name, List arguments) {
        StepShape known = Grammar.STEPS[name]
        if (known == null) { throw new Broken("no such step: $name") }
        Context here = Context.current()
        if (here != null && here.deadline < System.nanoTime()) { throw new Interrupted('the time limit is over') }
        if (known.needsNode) { here.inside() }
        if (known.needsNode && here.node.lost) { throw new Broken("$name: ${here.node.name} is offline") }
        List given = arguments as List
        if (name == 'parallel') { return interpreter.branches(given[0] as Map) }
        Closure body = given && given.last() instanceof Closure ? given.last() as Closure : null
        List plain = body ? given.dropRight(1) : given
        if (known.body != (body != null)) {
            throw new Broken("$name ${known.body ? 'needs' : 'takes no'} block")
        }
        Map named = plain && plain[0] instanceof Map ? new LinkedHashMap(plain[0] as Map) : [:]
        if (plain && !(plain[0] instanceof Map)) {
            if (!known.sole) { throw new Broken("$name: arguments must be named") }
            named[known.sole] = plain[0]
        }
        List wrong = known.complaints(named.keySet())
        if (wrong) { throw new Broken("$name: ${wrong.join('; ')}") }
        if (known.value) { return [step: name] + named } // string(credentialsId: ...) and the like
        "do_$name"(named, body)
    }

    private Object do_sh(Map a, Closure body) { shell.run(a) }

    private Object do_echo(Map a, Closure body) { build.say(a.message as String); null }

    private Object do_error(Map a, Closure body) { throw new Broken(a.message as String) }

    private Object do_script(Map a, Closure body) { body() }

    private Object do_unstable(Map a, Closure body) {
        build.say("WARNING: ${a.message}")
        mark('UNSTABLE')
        build.worsen('UNSTABLE')
    }

    private Object do_sleep(Map a, Closure body) {
        Context here = Context.current()
        double wanted = build.seconds(a.time as Number, (a.unit ?: 'SECONDS') as String)
        build.outside { Thread.sleep((Math.min(wanted, here.remaining()) * 1000) as long) }
        if (wanted > here.remaining()) { throw new Interrupted('timed out in sleep') }
        null
    }

    private Object do_node(Map a, Closure body) {
        build.onNode((a.label ?: '') as String, Context.current()) { Map node ->
            if (Context.current().record != null) { Context.current().record.node = node.name }
            Context.within({ it.node = node; it.folder = node.workspace; it.env += Interpreter.onAgent(node) }, body)
        }
    }

    private Object do_dir(Map a, Closure body) {
        File target = new File(Context.current().inside(), a.path as String)
        target.mkdirs()
        Context.within({ it.folder = target }, body)
    }

    private Object do_deleteDir(Map a, Closure body) { Context.current().inside().deleteDir(); null }

    private Object do_fileExists(Map a, Closure body) {
        new File(Context.current().inside(), a.file as String).exists()
    }

    private Object do_readFile(Map a, Closure body) { new File(Context.current().inside(), a.file as String).text }

    private Object do_writeFile(Map a, Closure body) {
        File target = new File(Context.current().inside(), a.file as String)
        target.parentFile.mkdirs()
        target.setText(a.text as String, 'UTF-8')
        null
    }

    private Object do_checkout(Map a, Closure body) { checkout(); null }

    /** The files of the repository over what is there: what git does not know of stays, as with git itself. */
    void checkout() {
        File source = new File(build.scenario.scm as String)
        Files.copy(source, Context.current().inside(), build.scenario.files as List<String>)
    }

    private Object do_withEnv(Map a, Closure body) {
        Context.within({ c -> (a.overrides as List).each { c.env[it.split('=', 2)[0]] = it.split('=', 2)[1] } }, body)
    }

    private Object do_withCredentials(Map a, Closure body) {
        Map set = [:]
        (a.bindings as List).each { Map binding ->
            Map found = build.scenario.credentials[binding.credentialsId]
            if (found == null) {
                throw new Broken("could not find credentials entry with ID '${binding.credentialsId}'")
            }
            if (binding.step == 'string') {
                set[binding.variable] = found.secret
            } else {
                set[binding.usernameVariable] = found.username
                set[binding.passwordVariable] = found.password
            }
        }
        build.secrets.addAll(set.values())
        Context.within({ it.env += set }, body)
    }

    private Object do_timeout(Map a, Closure body) {
        double seconds = build.seconds(a.time as Number, (a.unit ?: 'MINUTES') as String)
        long end = System.nanoTime() + (seconds * 1e9 as long)
        Context.within({ it.deadline = Math.min(it.deadline, end) }, body)
    }

    private Object do_retry(Map a, Closure body) {
        int left = a.count as int
        while (true) {
            try {
                return body()
            } catch (Broken | AgentLost failure) {
                // With conditions only these are tried again.
                boolean again = a.conditions ? a.conditions.any { it.step == 'agent' } : failure instanceof Broken
                if (!again || (a.conditions && failure instanceof Broken)) { throw failure }
                left -= 1
                if (left <= 0) { throw failure }
                build.say("Retrying: ${failure.message}")
            }
        }
    }

    private Object do_lock(Map a, Closure body) {
        String name = a.resource ?: a.label
        if (!name) { throw new Broken('lock: give a resource or a label') }
        build.withLock(name, Context.current(), body)
    }

    private Object do_timestamps(Map a, Closure body) { body() }

    private Object do_catchError(Map a, Closure body) {
        try {
            body()
        } catch (Interrupted ended) {
            if (a.catchInterruptions == false) { throw ended }
            caught(ended, a.message as String, 'ABORTED', 'ABORTED')
        } catch (Broken failure) { // what else is thrown is a mistake of the pipeline or of the harness
            caught(failure, a.message as String, (a.buildResult ?: 'FAILURE') as String,
                (a.stageResult ?: 'SUCCESS') as String)
        }
        null
    }

    private Object do_warnError(Map a, Closure body) {
        do_catchError(a + [buildResult: 'UNSTABLE', stageResult: 'UNSTABLE'], body)
    }

    private void caught(Exception failure, String message, String result, String ofStage) {
        build.say("ERROR: ${message ?: ''} ${failure.message}")
        mark(ofStage)
        build.worsen(result)
    }

    private static void mark(String result) {
        Map record = Context.current().record
        if (record != null && Build.RESULTS.indexOf(result) > Build.RESULTS.indexOf(record.result)) {
            record.result = result
        }
    }

    private Object do_stash(Map a, Closure body) {
        File here = Context.current().inside()
        List names = Files.matching(here, (a.includes ?: '**') as String, a.excludes as String)
        if (!names && a.allowEmpty != true) { throw new Broken("stash ${a.name}: no files included") }
        File to = new File(build.folder, "stashes/${a.name}")
        if (to.exists()) { to.deleteDir() } // a stash of the same name replaces the earlier one
        Files.copy(here, to, names)
        build.stashes[a.name as String] = names
        build.say("Stashed ${names.size()} files as ${a.name}")
    }

    private Object do_unstash(Map a, Closure body) {
        List names = build.stashes[a.name as String]
        if (names == null) { throw new Broken("no such saved stash '${a.name}'") }
        Files.copy(new File(build.folder, "stashes/${a.name}"), Context.current().inside(), names)
        null
    }

    private Object do_archiveArtifacts(Map a, Closure body) { publishers.archive(a) }

    private Object do_junit(Map a, Closure body) {
        if (publishers.junit(a)) { mark('UNSTABLE') }
        null
    }

    private Object do_publishHTML(Map a, Closure body) { publishers.html(a) }

    private Object do_plot(Map a, Closure body) { publishers.plot(a) }

    private Object do_mail(Map a, Closure body) {
        if (build.scenario.mail_refused) { throw new Broken('mail: connection refused') }
        build.mails << [to: a.to as String, subject: a.subject as String, body: a.body as String]
        null
    }
}
