import java.nio.file.Files as NioFiles
import java.nio.file.LinkOption
import java.nio.file.Path
import java.nio.file.StandardCopyOption
import java.util.regex.Pattern

/** Files by Ant's patterns, as Jenkins' steps take them: `runs/**`, `*.xml, *.json`, `folder/`. */
class Files {
    /** Paths, relative to `folder`, of the files that match a pattern and no exclusion; links are not followed. */
    static List<String> matching(File folder, String patterns, String excluded = null) {
        List wanted = compiled(patterns)
        List unwanted = compiled(excluded)
        List<String> found = []
        if (!folder.directory) { return found }
        Path top = folder.toPath()
        def walk = NioFiles.walk(top)
        try {
            walk.each { Path path ->
                if (NioFiles.isDirectory(path, LinkOption.NOFOLLOW_LINKS)) { return }
                String name = top.relativize(path).toString()
                if (wanted.any { name ==~ it } && !unwanted.any { name ==~ it }) { found << name }
            }
        } finally {
            walk.close()
        }
        found.sort()
    }

    static void copy(File from, File to, List<String> names) {
        names.each { String name ->
            File target = new File(to, name)
            target.parentFile.mkdirs()
            NioFiles.copy(new File(from, name).toPath(), target.toPath(), StandardCopyOption.REPLACE_EXISTING,
                StandardCopyOption.COPY_ATTRIBUTES)
        }
    }

    private static List<String> compiled(String patterns) {
        (patterns ?: '').split(',')*.trim().findAll { it }.collect { expression(it) }
    }

    /** An Ant pattern as a regular expression: `**` is any number of folders, `*` and `?` stay in one. */
    static String expression(String pattern) {
        String whole = pattern.endsWith('/') ? pattern + '**' : pattern
        List parts = whole.split('/') as List
        StringBuilder built = new StringBuilder()
        parts.eachWithIndex { String part, int place ->
            boolean last = place == parts.size() - 1
            if (part == '**') {
                built << (last ? '.*' : '(?:[^/]+/)*')
            } else {
                part.each { letter ->
                    built << ([('*'): '[^/]*', ('?'): '[^/]'][letter] ?: Pattern.quote(letter))
                }
                if (!last) { built << '/' }
            }
        }
        built.toString()
    }
}
