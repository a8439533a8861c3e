from proxfed.cli.main import main

main()
