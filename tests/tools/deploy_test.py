"""The scripts a newcomer runs parse, explain themselves and refuse what they do not know; Prometheus takes its file."""

import os
import shutil
import subprocess
import unittest

ROOT = os.environ.get("COMOE_SOURCE_DIR") or os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
SCRIPTS = ["deploy/install_deps.sh", "deploy/quickstart.sh", "deploy/test.sh", "deploy/chroot_replay.sh"]


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
                          stdin=subprocess.DEVNULL)


class DeployTest(unittest.TestCase):
    def test_scripts_parse_and_can_be_run(self):
        for script in [*SCRIPTS, ".ci/run"]:
            with self.subTest(script):
                self.assertTrue(os.access(os.path.join(ROOT, script), os.X_OK))
                result = run("bash", "-n", script)
                self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_help_names_every_option_that_is_parsed(self):
        for script in SCRIPTS:
            with self.subTest(script):
                result = run(script, "--help")
                self.assertEqual(result.returncode, 0, result.stderr)
                with open(os.path.join(ROOT, script), encoding="utf-8") as file:
                    parsed = [line.strip().split(")")[0] for line in file if line.strip().startswith("--")]
                options = [word for word in parsed if word.replace("-", "").isalpha()]
                self.assertTrue(options)
                for option in options:
                    self.assertIn(option, result.stdout)

    def test_an_unknown_option_is_refused_before_anything_is_done(self):
        for script in SCRIPTS:
            with self.subTest(script):
                result = run(script, "--no-such-option")
                self.assertEqual(result.returncode, 1)
                self.assertIn("unknown option '--no-such-option'", result.stderr)
                self.assertEqual(result.stdout, "")

    def test_quickstart_refuses_what_is_no_port(self):
        for port in ["0", "65536", "http", ""]:
            with self.subTest(port):
                result = run("deploy/quickstart.sh", "--once", "--port", port)
                self.assertEqual(result.returncode, 1)
                self.assertIn("is no port", result.stderr)

    def test_prometheus_takes_its_configuration(self):
        promtool = shutil.which("promtool", path=os.environ["PATH"] + ":" + os.path.join(ROOT, "build/tools"))
        if promtool is None:
            self.skipTest("promtool is not installed; deploy/install_deps.sh --with tests brings it")
        result = run(promtool, "check", "config", "deploy/prometheus.yml")
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    unittest.main()
