# Eight processes import the package at once. A failure of any is that of this program.
import subprocess
import sys

IMPORT = "import sys; sys.path.insert(0, 'modules'); import storm; assert storm.m299.NUMBER == 299"
children = [subprocess.Popen([sys.executable, "-I", "-c", IMPORT]) for _ in range(8)]
sys.exit(max(child.wait() for child in children))
