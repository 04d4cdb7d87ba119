"""English words that may stand for each other: a table to extend by hand. `word_aliases` reads it. Data only."""

from __future__ import annotations

from typing import Final

SAME_MEANING: Final = """
    dad, daddy, father, papa, pop
    mom, mum, mommy, mummy, mother, mama
    grandma, granny, grandmother, nana
    grandpa, granddad, grandfather
    kid, child, toddler, youngster
    son, boy
    daughter, girl
    child: son, daughter, boy, girl, baby, twin
    kid: son, daughter, boy, girl, baby, twin
    grandchild: grandson, granddaughter
    parent: dad, mom, mum, father, mother
    sibling: brother, sister, twin
    grandparent: grandma, grandpa, grandmother, grandfather
    relative: uncle, aunt, cousin, niece, nephew, grandma, grandpa
    family, relative
    baby, infant, newborn, toddler
    husband, hubby, spouse
    wife, spouse
    partner: husband, wife, boyfriend, girlfriend, fiance, fiancee, spouse
    fiance, fiancee
    friend, buddy, pal, mate
    man, guy, bloke
    woman, lady
    people, folk
    roommate, flatmate, housemate
    neighbor, next door, people next door
    colleague, coworker, co-worker, teammate
    boss, manager, supervisor, superior
    company, business, firm, corporation, employer, startup
    employee, staff, worker, personnel
    job, work, position, occupation, profession, career, employment, for a living
    job: role, title, employer
    salary, wage, pay, income, paycheck, earn
    raise, pay increase
    fire, dismiss, lay off, sack, lose job
    hire, recruit, employ
    quit, resign, give up, leave, stop
    retire, pension
    interview, recruiter
    meeting, appointment, get-together
    deadline, due, due date
    office, workplace
    commute, way to work, get to work
    lawyer, attorney, solicitor, barrister
    doctor, physician, gp, dr
    doctor: surgeon, specialist, pediatrician, cardiologist, dermatologist
    dentist, tooth, dental
    vet, veterinarian
    therapist, psychologist, counselor, counsellor, shrink, therapy
    nurse, caregiver
    teacher, instructor, tutor, professor
    student, pupil
    police, cop, policeman, police officer
    plumber, pipe
    mechanic, garage
    author, writer, novelist
    singer, musician, band
    pilot, fly
    chef, cook
    coach, trainer
    er, emergency, emergency room, emergency department
    hospital, clinic
    pharmacy, drugstore, chemist
    medicine, medication, drug, pill, tablet
    prescription, prescribe, put on
    illness, disease, sick, sickness, ill, disorder
    illness: flu, cold, asthma, diabetes, cancer, migraine, arthritis, pneumonia, infection
    condition: asthma, diabetes, migraine, arthritis, allergy
    diagnose, diagnosis
    surgery, operation, surgical
    injury, injure, hurt, wound, break, fracture, sprain
    pain, ache, hurt, sore
    allergy, allergic, intolerant, intolerance
    vaccine, vaccination, vaccinate, jab
    flu, influenza
    fever, temperature
    belly, stomach, tummy
    leg: knee, ankle, thigh, foot
    arm: elbow, wrist, shoulder, hand
    pregnant, pregnancy, expecting, due
    birth, born, birthday, date of birth, dob, birthplace
    die, dead, pass away, funeral
    funeral, burial
    marry, marriage, wedding
    wedding, ceremony
    divorce, split up, break up
    engaged, engagement, propose, proposal
    home, house, residence
    live, reside, residence, based, address
    home: apartment, flat, house
    apartment, flat, condo, studio
    rent, lease, tenant, landlord
    landlord, landlady, owner
    mortgage, home loan, house loan
    garden, yard, backyard, lawn
    living room, lounge, sitting room
    restroom, toilet, bathroom, loo, washroom
    basement, cellar
    attic, loft
    elevator, lift
    sofa, couch, settee
    closet, wardrobe, cupboard
    curtain, blind, drape
    carpet, rug
    furniture: sofa, couch, table, chair, desk, bed, shelf, wardrobe
    faucet, tap
    trash, garbage, rubbish, waste, bin
    vacuum, hoover
    fridge, refrigerator
    oven, stove, cooker
    washing machine, washer, laundry
    tv, television, telly
    phone, telephone, mobile, cell, cellphone, smartphone, handset
    phone: iphone, android, galaxy, pixel
    call, ring, phone
    laptop, computer, notebook, pc
    computer: macbook, thinkpad, imac, desktop
    machine, server, computer
    internet, wifi, wi-fi, online
    email, e-mail, mail
    photo, picture, photograph, image, pic
    video, clip, footage
    movie, film
    movie: comedy, thriller, documentary, drama
    song, music, track, tune
    music: jazz, rock, classical, blues, techno
    show, series, sitcom
    concert, gig, show, performance
    play, theater
    book, novel, read
    book: thriller, biography, memoir
    newspaper, paper
    match, game
    competition, tournament, contest, championship
    race, marathon, triathlon
    prize, award, trophy, medal
    win, victory
    lose, defeat
    football, soccer
    sport: football, soccer, tennis, basketball, baseball, hockey, golf, swimming, volleyball, rugby, cricket, climbing
    gym, fitness, workout
    exercise, workout, work out, train, gym
    exercise: yoga, pilates, running, swimming, jogging
    bike, bicycle, cycle
    motorbike, motorcycle, scooter
    car, vehicle, auto, automobile
    car: volvo, toyota, honda, ford, bmw, audi, tesla, subaru, mazda, volkswagen, nissan, hyundai, mercedes, suv, sedan
    drive, driver
    truck, lorry, van
    train, railway, rail, railroad
    subway, underground, metro, tube
    plane, airplane, aeroplane, aircraft, flight
    fly, flight
    boat, ship, ferry, yacht
    gas, petrol, gasoline, fuel
    license, licence, permit
    crash, accident, collision
    fine, penalty, ticket
    trip, journey, travel, tour, voyage
    vacation, holiday, trip, getaway
    hotel, hostel, accommodation, stay
    luggage, baggage, suitcase
    passport, travel document
    abroad, overseas, foreign
    return, go back, come back
    arrive, arrival, land
    depart, departure, leave
    city, town
    country, nation, homeland
    street, road, avenue, lane, address
    beach, sea, seaside, coast, shore, ocean
    forest, wood
    mountain, hill
    weather: storm, rain, snow, sunny, cloudy, wind
    autumn, fall
    dog, puppy, pup
    dog: beagle, labrador, retriever, poodle, terrier, husky, bulldog, corgi, dachshund, spaniel, greyhound, collie
    cat, kitten, kitty
    pet: dog, cat, puppy, kitten, hamster, parrot, rabbit, goldfish, tortoise, turtle
    animal: dog, cat, horse, cow, sheep, chicken, goat, bird
    rabbit, bunny
    insect: bee, wasp, ant, fly, beetle, butterfly
    food, meal, dish, cuisine
    meal: breakfast, lunch, dinner
    breakfast, in the morning
    lunch, noon, midday
    dinner, supper, evening meal
    eat, dine
    dessert, cake
    candy, sweet
    cookie, biscuit
    fries, chips
    soda, soft drink
    alcohol, booze, liquor
    alcohol: wine, beer, whisky, vodka
    drink, beverage
    drink: tea, coffee, wine, beer, juice, milk, soda
    fruit: apple, banana, orange, pear, cherry, mango, strawberry, grape, peach
    vegetable: carrot, potato, tomato, onion, spinach, broccoli, pepper
    nut: peanut, almond, walnut, cashew, hazelnut
    restaurant, diner, bistro
    bar, pub
    cafe, coffee shop
    vegetarian, vegan, meat
    cook, prepare, recipe
    bake, baker, bakery
    hungry, starving
    supermarket, grocery
    store, shop
    mall, shopping center
    buy, purchase, acquire
    sell, get rid of
    cost, price, pay, spend, charge, fee
    cheap, inexpensive, affordable
    bill, invoice
    money, cash, fund
    owe, debt, borrow
    borrow, lend, loan
    loan, credit, mortgage
    save, savings, put aside
    insurance, insure, insurer
    dollar, buck, usd
    euro, eur
    pound, gbp, quid
    refund, money back, reimburse
    discount, coupon, voucher
    order, delivery, shipment
    package, parcel, delivery, shipment
    send, ship, mail, post
    gift, present
    party, celebration
    christmas, xmas
    clothes, clothing, outfit
    clothes: shirt, dress, trousers, jeans, jacket, sweater, skirt
    pants, trousers
    sweater, jumper, pullover
    sneaker, trainer
    shoe, footwear, boot
    glasses, spectacles
    purse, handbag, wallet
    jewelry: ring, necklace, bracelet, earring
    dress, gown
    coat, jacket
    size, big, large
    big, large, huge
    small, little, tiny
    far, distance
    speed, fast, quick
    age, old
    begin, start, commence
    end, finish, complete
    expire, end, run out, renew
    cancel, call off
    postpone, reschedule, put off, move
    delay, late
    fix, repair, mend
    replace, swap, exchange
    damage, broken, destroy, crack, ruin
    build, construct
    renovate, renovation, remodel, redecorate, refurbish
    choose, pick, select, decide, opt
    suggest, recommend, advise
    help, assist, support
    try, attempt
    want, wish
    plan, intend
    opinion, think
    love, adore, enjoy, fond
    favorite, prefer, best, like most
    hate, dislike, detest, loathe, can't stand
    afraid, scared, fear, phobia, frightened, terrified
    angry, mad, furious, upset, annoyed
    happy, glad, pleased, delighted
    sad, unhappy, depressed
    tired, exhausted, sleepy
    worried, worry, anxious, nervous, concerned
    funny, hilarious
    crazy, insane
    stupid, dumb, silly
    smart, clever, intelligent
    beautiful, pretty, gorgeous
    bad, awful, terrible, horrible
    great, excellent, wonderful
    wrong, mistake, error
    difficult, hard, tough
    easy, simple
    strange, weird, odd
    hide, hidden, keep
    steal, theft, thief, rob, burglar
    kill, murder
    fight, argue, argument, quarrel
    talk, speak, chat, conversation, discuss
    language, speak, tongue
    language: english, german, french, spanish, italian, polish, danish, dutch, greek, russian, chinese, japanese
    yell, shout, scream
    cry, weep
    laugh, giggle
    question, ask
    answer, reply, respond, response
    promise, vow
    forbid, ban, prohibit
    allow, permit
    visit, come over, stop by
    date, go out
    sleep, asleep, bed
    wake, get up, awake
    shower, bath, bathe
    smoke, cigarette
    watch, see, look
    hear, listen
    meet, encounter
    move, relocate
    grow up, grew up, childhood, raised
    class, lesson, course
    college, university, uni
    graduate, degree, diploma
    study, major, degree
    exam, test, quiz
    grade, mark, score
    homework, assignment
    learn, study
    hobby, pastime, interest, free time
    hobby: knitting, painting, gardening, fishing, chess, photography, pottery, hiking, birdwatching
    draw, drawing, sketch
    instrument: guitar, piano, violin, cello, drum, flute, trumpet, saxophone, clarinet
    surname, lastname, last name, family name
    first name, given name
    password, passcode, pin, code
    username, login, user name
    error, bug, fault, defect
    fail, failure
    delete, erase, remove
    change, alter, modify
    update, upgrade
    install, set up, setup
    repo, repository
    database, db
    database: postgres, postgresql, mysql, sqlite, mongodb, redis
    app, application, program
    software, program, tool
    os, operating system
    os: linux, windows, macos, ubuntu, debian, fedora
    browser: firefox, chrome, safari, edge
    editor: vim, emacs, vscode
    programming language: python, java, javascript, rust, go, ruby
    config, configuration, settings
    directory, folder
    docs, documentation
    deploy, release, rollout
    dev, developer, programmer, engineer
    client, customer
    supplier, vendor
    contract, agreement
    report, document
    goal, aim, target, objective
    result, outcome
    problem, issue, trouble
    reason, cause
    idea, suggestion
    info, information
    amount, quantity
    monthly, month
    weekly, every week
    daily, every day
    yearly, annual, annually, year
    hourly, hour
    weekend: saturday, sunday
    tonight, evening
    religion: church, christian, muslim, buddhist, jewish, catholic
    army, military, soldier
    soldier, war
    gun, pistol, rifle
    jail, prison
    happen, occur, take place
    place, location, venue, spot
    own, possess, belong
    receive, get, obtain
    attend, visit, go to
    participate, take part, join
    organize, arrange, plan
    contact, reach, get in touch, keep in touch
    reject, refuse, decline, turn down
    accept, agree, approve
    complain, complaint
    search, look for, seek
    discover, find out
    babysit, look after, take care
    collect, pick up
    rich, wealthy
    famous, well-known
    loud, noisy, noise
    quiet, silent
    free, available
    slim, thin
    fat, overweight, obese
    member, membership, subscription
    invest, investment, stock, portfolio
    profit, revenue, earnings
    installment, payment
    warranty, guarantee
    product, item, goods
    faulty, defective, broken, damaged
    hypertension, blood pressure
    heart attack, cardiac
    tumor, cancer
    dose, dosage, mg
    checkup, examination, physical
    diet, calorie
    crash, freeze, hang
    slow, latency, performance
    sign in, login
    merge, pull request
    framework, library
    ide, editor
    ci, pipeline, continuous integration
    kubernetes, k8s
    container, docker
    api, endpoint
    token, key, credential, secret
    usa, united states, america, american
    uk, united kingdom, britain, british
    eu, european union
    germany, german
    france, french
    spain, spanish
    italy, italian
    netherlands, dutch, holland
    nyc, york, new york
    sf, francisco, san francisco
    km, kilometer, kilometre
    cm, centimeter, centimetre
    ft, foot
    kg, kilo, kilogram
    lb, lbs, pound
    oz, ounce
    hr, hour
    min, minute
    sec, second
    gb, gigabyte
    mb, megabyte
    approx, approximately
    percent, percentage
    vs, versus
    asap, urgent, immediately
    jan, january
    feb, february
    apr, april
    jun, june
    jul, july
    aug, august
    sep, sept, september
    oct, october
    nov, november
    dec, december
    mon, monday
    tue, tues, tuesday
    wed, weds, wednesday
    thu, thur, thurs, thursday
    fri, friday
    dept, department
"""
"""One line for words that mean nearly the same. After a colon are kinds of the word before it: each may stand for that
word and it for each, but they do not stand for each other. Several words between commas are a phrase: if a
question has it, the other words stand for it; its words stand for nothing."""

SAME_WORD: Final = """
    arise arose arisen; awake awoke awoken; bear bore borne born birth; beat beaten; become became; begin began begun;
    bend bent; bind bound; bite bit bitten; bleed bled; blow blew blown; break broke broken; breed bred; bring brought;
    build built; burn burnt; buy bought; catch caught; choose chose chosen choice; cling clung; creep crept; deal dealt;
    die died dying death dead; dig dug; draw drew drawn; dream dreamt; drink drank drunk; drive drove driven;
    eat ate eaten; fall fell fallen; feed fed; feel felt; fight fought; find found; flee fled; fly flew flown flight;
    forbid forbade forbidden; forget forgot forgotten; forgive forgave forgiven; freeze froze frozen; give gave given;
    go went gone; grind ground; grow grew grown growth; hang hung; hear heard; hide hid hidden; hold held; keep kept;
    kneel knelt; know knew known knowledge; lay laid; lead led; leap leapt; learn learnt; leave left; lend lent;
    lie lain lying; light lit; lose lost loss; make made; mean meant; meet met; mistake mistook mistaken; pay paid;
    prove proven proof; ride rode ridden; ring rang rung; rise rose risen; run ran runner; see saw seen; seek sought;
    sell sold sale; send sent; sew sewn; shake shook shaken; shine shone; shoot shot; show shown; shrink shrank shrunk;
    sing sang sung song; sink sank sunk; sit sat; sleep slept; slide slid; smell smelt; speak spoke spoken speech;
    spell spelt; spend spent; spill spilt; spin spun; spoil spoilt; spring sprang sprung; stand stood;
    steal stole stolen; stick stuck; sting stung; strike struck; swear swore sworn; sweep swept; swell swollen;
    swim swam swum swimmer; swing swung; take took taken; teach taught; tear tore torn; tell told; think thought;
    throw threw thrown; understand understood; wake woke woken; wear wore worn; weave wove woven; weep wept;
    win won winner; withdraw withdrew withdrawn; write wrote written;
    bad worse worst; good better best; far farther farthest further; big bigger biggest; old older oldest elder eldest;
    child children; foot feet; tooth teeth; goose geese; mouse mice; man men; woman women; person people;
    life lives live; knife knives; wife wives; half halves; leaf leaves; shelf shelves; thief thieves; wolf wolves;
    loaf loaves; scarf scarves; bus buses; criterion criteria; analysis analyses analyze analyse;
    diagnosis diagnoses diagnose; crisis crises; index indices; matrix matrices; phenomenon phenomena;
    weigh weight; high height; long length; wide width; deep depth; strong strength; warm warmth; hot heat;
    marry marriage; believe belief; advise advice; sit seat; succeed success; decide decision; divide division;
    explain explanation; apply application; describe description; receive receipt reception; pronounce pronunciation;
    permit permission; admit admission; intend intention; extend extension; expand expansion; destroy destruction;
    produce production; introduce introduction; reduce reduction; solve solution; subscribe subscription;
    prescribe prescription; respond response; defend defence defense; behave behavior behaviour; compare comparison;
    proud pride; true truth; young youth; poor poverty; angry anger; hungry hunger; thirsty thirst; noisy noise;
    safe safety; able ability; lend loan; invite invitation; insure insurance; retire retirement; promote promotion;
    celebrate celebration; propose proposal; injure injury; arrive arrival; depart departure; deliver delivery;
    travel traveler traveller; centre center; theatre theater; colour color; favour favor; favourite favorite;
    neighbour neighbor; neighbourhood neighborhood; grey gray; programme program; cheque check; tyre tire;
    licence license; organise organize organizer; realise realize; apologise apologize apology; catalogue catalog;
    jewellery jewelry; pyjamas pajamas; moustache mustache; plough plow; sceptical skeptical; aluminium aluminum;
    practise practice; cosy cozy; litre liter; metre meter; fibre fiber; humour humor; honour honor; labour labor;
    flavour flavor; enrol enroll; fulfil fulfill; doughnut donut; yoghurt yogurt; two twice
"""
"""Irregular forms, spellings, and words of one stem that no ending in `word_aliases.ENDINGS` leads to."""
