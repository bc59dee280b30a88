# SPDX-License-Identifier: Apache-2.0
"""Make a virtual environment of Python for a skill, unless it is there. boxd runs this in the box, as any program of it.

Arguments: the skill's directory, the workspace, and what pip is told, as JSON. The last line of the output says which it is.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys

NOTHING, NO_VENV, NO_PIP, FAILED, NO_ROOM = 81, 82, 83, 84, 85
MARK = ".boxd-environment"


def fail(code, text):
    print(text, file=sys.stderr, flush=True)
    sys.exit(code)


def stop(error):
    raise error


def digest():
    """Of all names, contents, and which files are programs: the version of the skill."""
    whole = hashlib.sha256()
    for at, dirs, files in os.walk(".", onerror=stop):
        dirs.sort()
        for name in sorted(files):
            path = os.path.join(at, name)
            with open(path, "rb") as f:
                one = hashlib.sha256(f.read()).hexdigest()
            whole.update(repr((path, os.access(path, os.X_OK), one)).encode())
    return whole.hexdigest()[:16]


def lists_nothing(path):
    with open(path, "rb") as f:
        return all(not line.strip() or line.strip().startswith(b"#") for line in f)


def pip(python, lock):
    """The pip that the box has, which installs for another Python, or one that Python brings."""
    try:
        import pip as found

        if tuple(int(n) for n in found.__version__.split(".")[:2]) >= (22, 3):
            return [sys.executable, "-I", "-m", "pip", "--python", python]
    except (ImportError, ValueError):
        pass
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        fail(NO_PIP, "there is neither pip of 22.3 or later nor ensurepip for %s" % sys.executable)
    run([python, "-I", "-m", "ensurepip"], lock)
    return [python, "-I", "-m", "pip"]


def run(argv, lock, **more):
    # Whoever is left of a program that was killed still has the lock, so that nobody makes anew what it writes to.
    if subprocess.call(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, pass_fds=[lock], **more) != 0:
        fail(FAILED, "%s has failed" % " ".join(argv[:4]))


def make(env, installs, options, lock):
    try:
        import venv
    except ImportError:
        fail(NO_VENV, "there is no module venv for %s" % sys.executable)
    venv.EnvBuilder(symlinks=True, with_pip=False).create(env)
    if not installs:
        return
    python, temporary = os.path.join(env, "bin", "python"), os.path.join(env, ".boxd-temporary")
    os.mkdir(temporary)
    os.environ["TMPDIR"] = temporary  # /tmp is of memory
    os.environ.setdefault("PIP_NO_CACHE_DIR", "1")
    tool = pip(python, lock)
    copy = os.path.join(temporary, "skill")  # where what is built may write
    shutil.copytree(".", copy)
    for args in installs:
        run(tool + ["install"] + options + args, lock, cwd=copy)
    shutil.rmtree(temporary)


def done(env, made):
    print(json.dumps({"path": env, "python": "%d.%d.%d" % sys.version_info[:3], "made": made}))
    sys.exit(0)


def main():
    skill, workspace, told = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    os.chdir(skill)  # which holds this version, whatever is mounted there meanwhile
    installs, found = [], set()
    for i in told["installs"]:
        if os.path.isfile(i["file"]) and tuple(i["args"]) not in found:
            found.add(tuple(i["args"]))
            if i["file"] != "requirements.txt" or not lists_nothing(i["file"]):
                installs.append(i["args"])
    if not found:
        fail(NOTHING, "the skill has none of " + ", ".join(i["file"] for i in told["installs"]))
    base = workspace if os.access(workspace, os.W_OK) else os.path.expanduser("~")
    home = os.path.join(base, ".skill-envs")
    which = hashlib.sha256(("%s %s" % (sys.version, sys.executable)).encode()).hexdigest()[:8]
    env = os.path.join(home, os.path.basename(skill), "%s-%s-%s" % (digest(), sys.implementation.cache_tag, which))
    os.makedirs(os.path.dirname(env), exist_ok=True)
    ignore = os.path.join(home, ".gitignore")
    if not os.path.lexists(ignore):
        with open(ignore, "w") as f:
            f.write("*\n")
    lock = os.open(env + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    mark = os.path.join(env, MARK)
    if os.path.exists(mark):
        done(env, False)
    shutil.rmtree(env, ignore_errors=True)  # somebody has not got to the end of it
    try:
        make(env, installs, told["options"], lock)
    except SystemExit:
        shutil.rmtree(env, ignore_errors=True)
        raise
    subprocess.call(["sync", "-f", env], stderr=subprocess.DEVNULL)  # the mark is on the disk after what it speaks of
    with open(mark, "w"):
        pass
    done(env, True)


try:
    main()
except OSError as problem:
    fail(NO_ROOM, str(problem))
