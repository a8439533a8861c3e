from proxfed.cli import main

main()
