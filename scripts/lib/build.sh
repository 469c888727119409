# Read by the scripts that run the gateway. BUILD_FEATURES: features to build it with, so that scripts that run one after
# the other need one build; none by default.
build=(--quiet --locked)
[[ -z ${BUILD_FEATURES:-} ]] || build+=(--features "$BUILD_FEATURES")
