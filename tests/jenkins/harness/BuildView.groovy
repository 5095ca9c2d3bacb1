/** `currentBuild`, as far as the pipelines use it. */
class BuildView {
    private final Build build

    BuildView(Build build) { this.build = build }

    String getResult() { build.result }

    String getCurrentResult() { build.result }

    void setResult(String to) { build.worsen(to) }

    /** Milliseconds of the pipeline's time since the build began. */
    long getDuration() { build.duration() }

    String getDisplayName() { build.displayName }

    void setDisplayName(String to) { build.displayName = to }

    String getDescription() { build.description }

    void setDescription(String to) { build.description = to }
}
