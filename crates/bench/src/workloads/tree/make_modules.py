# Makes a package of many modules, with their bytecode.
import compileall
import os

os.makedirs("modules/storm")
for number in range(300):
    with open(f"modules/storm/m{number:03}.py", "w") as module:
        module.write(f"NUMBER = {number}\n" + "# filler\n" * 200)
with open("modules/storm/__init__.py", "w") as module:
    module.writelines(f"from . import m{number:03}\n" for number in range(300))
compileall.compile_dir("modules", quiet=2)
